//! What the consumers of an execution are created with.

use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};

use super::super::chance::Chance;
use super::server::Rules;
use crate::consumer::ConsumerOptions;
use crate::endpoint::{Form, OptionValue};

/// The same for all consumers of a group, as the documentation demands, unless it says otherwise.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // each is an option
pub struct Options {
    pub min_idle: Duration,
    pub max_failures: Option<u64>,
    pub deletes: bool,
    pub buries_bad: bool,
    pub acks: bool,
    // Those of one consumer.
    pub batch_rows: u64,
    pub batch_bytes: u64,
    pub page_bytes: u64,
    pub block: Duration,
    pub linger: Duration,
    pub renews: bool,
    pub claims: bool,
    pub max_processing: Duration,
}

impl Options {
    pub fn new(chance: &mut Chance) -> Self {
        let acks = !chance.one_in(20);
        let min_idle = Duration::from_millis(*chance.pick(&[100, 1_000, 60_000]));
        Self {
            min_idle,
            max_failures: Some(*chance.pick(&[1, 2, 5])).filter(|_| acks && chance.one_in(3)),
            deletes: acks && chance.one_in(4),
            buries_bad: acks && chance.one_in(3),
            acks,
            batch_rows: 5,
            batch_bytes: 1 << 20,
            page_bytes: 1 << 20,
            block: Duration::from_secs(1),
            linger: Duration::ZERO,
            renews: true,
            claims: true,
            max_processing: Duration::from_secs(1_800),
        }
    }

    /// Those of another consumer of the group.
    pub fn another(&self, chance: &mut Chance) -> Self {
        Self {
            batch_rows: *chance.pick(&[1, 2, 3, 5, 5, 30]),
            batch_bytes: *chance.pick(&[1 << 20, 1 << 20, 1 << 20, 1, 300]),
            page_bytes: *chance.pick(&[1 << 20, 1 << 20, 1, 300, 2_000]),
            block: *chance.pick(&[Duration::from_millis(1), Duration::from_secs(1), self.min_idle * 2]),
            linger: Duration::from_millis(*chance.pick(&[0, 0, 5])),
            renews: !chance.one_in(5),
            claims: !chance.one_in(6),
            max_processing: if chance.one_in(6) { self.min_idle * 2 } else { Duration::from_secs(1_800) },
            ..self.clone()
        }
    }

    pub fn consumer(&self, name: &str) -> ConsumerOptions {
        let text = OptionValue::text;
        let int = |number: u64| OptionValue::Int(i128::from(number));
        let seconds = |time: Duration| OptionValue::Float(time.as_secs_f64());
        let buries = self.buries_bad || self.max_failures.is_some();
        let options = [
            ("group", text("g")),
            ("consumer", text(name)),
            ("metadata", OptionValue::Names(["entry_id", "deliveries", "reclaimed"].map(str::to_owned).to_vec())),
            ("on_bad_field", text(if self.buries_bad { "dead_letter" } else { "fail" })),
            ("batch_rows", int(self.batch_rows)),
            ("batch_bytes", int(self.batch_bytes)),
            ("page_bytes", int(self.page_bytes)),
            ("block", seconds(self.block)),
            ("linger", seconds(self.linger)),
            ("min_idle", seconds(self.min_idle)),
            ("renew", OptionValue::Bool(self.renews)),
            ("max_processing", seconds(self.max_processing)),
            ("claim", OptionValue::Bool(self.claims)),
            ("ack", text(if self.acks { "explicit" } else { "none" })),
            ("ack_delete", OptionValue::Bool(self.deletes)),
            ("max_failures", self.max_failures.map_or(OptionValue::Null, int)),
            ("dead_letter_key", if buries { text("dead") } else { OptionValue::Null }),
        ];
        let schema = Schema::new(vec![Field::new("v", DataType::Int64, true)]);
        ConsumerOptions::new(options.map(|(name, value)| (name.to_owned(), value)), Form::Typed, Some(&schema)).unwrap()
    }

    pub fn rules(&self) -> Rules {
        Rules {
            block: self.block,
            batch_rows: self.batch_rows,
            min_idle: self.min_idle,
            acks: self.acks,
            deletes: self.deletes,
            max_failures: self.max_failures,
            buries_bad: self.buries_bad,
            claims: self.claims,
        }
    }
}
