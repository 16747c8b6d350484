//! Tests of what a ledger counts and queues.
#![allow(clippy::unwrap_used)]

use super::super::work::Names;
use super::*;

const CLOSED: Error = Error::Closed { what: "consumer" };
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

const fn id(ms: u64) -> EntryId {
    EntryId { ms, seq: 0 }
}

fn ledger(max_failures: Option<u64>) -> Ledger {
    let options = LedgerOptions {
        min_idle: MINUTE,
        max_processing: 30 * MINUTE,
        max_failures,
        deletes: false,
        max_released: 65_536,
    };
    Ledger::new(vec![Arc::from(&b"s"[..]), Arc::from(&b"t"[..])], options)
}

fn ids(from: u64, to: u64) -> Vec<EntryId> {
    (from..=to).map(id).collect()
}

fn work(ledger: &mut Ledger) -> Vec<(Action, Vec<u64>)> {
    let works = std::iter::from_fn(|| ledger.take()).collect::<Vec<_>>();
    for work in &works {
        ledger.done(work, &[]);
    }
    works.into_iter().map(|work| (work.action, work.ids.iter().map(|id| id.ms).collect())).collect()
}

#[test]
fn entries_acknowledged_in_parts_are_sent_once() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(0, ids(1, 4), Vec::new(), SECOND);
    ledger.ack(batch, Chosen::Mask(&[true, false, true, false]), SECOND);
    ledger.ack(batch, Chosen::Mask(&[true, true, false, false]), SECOND);
    assert_eq!(work(&mut ledger), [(Action::Ack, vec![1, 3]), (Action::Ack, vec![2])]);
    ledger.ack_ids(0, &[id(4), id(9)], SECOND);
    assert_eq!(work(&mut ledger), [(Action::Ack, vec![4, 9])]);
    ledger.ack(batch, Chosen::All, SECOND);
    assert_eq!(work(&mut ledger), []);
    assert_eq!(ledger.report(), ReadReport { acked: 5, ..ReadReport::default() });
    assert!(ledger.batches.numbers(|_| true).is_empty() && ledger.is_settled());
}

#[test]
fn a_decision_is_unconfirmed_until_the_reply() {
    let mut ledger = ledger(Some(1));
    let batch = ledger.hold(0, ids(1, 6), Vec::new(), SECOND);
    assert_eq!(ledger.unconfirmed(), 0);
    ledger.ack(batch, Chosen::Mask(&[true, true, false, false, false, false]), SECOND);
    ledger.release(batch, Chosen::Mask(&[false, false, true, false, false, false]), SECOND, SECOND);
    ledger.fail(batch, Chosen::Mask(&[false, false, false, true, false, false]), "bad", None, SECOND);
    ledger.ack_ids(0, &[id(9)], SECOND);
    assert_eq!(ledger.unconfirmed(), 5);
    let ack = ledger.take().unwrap();
    ledger.returned(ack);
    assert_eq!(ledger.unconfirmed(), 5, "the reply was lost");
    let ack = ledger.take().unwrap();
    ledger.refused(&ack, CLOSED, SECOND);
    assert_eq!(ledger.unconfirmed(), 3, "the caller holds the entries again");
    ledger.renew(20 * SECOND);
    assert_eq!(ledger.unconfirmed(), 3);
    work(&mut ledger);
    assert_eq!(ledger.unconfirmed(), 0);
}

#[test]
fn an_entry_that_another_consumer_claimed_is_stale_and_its_lease_is_lost() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(0, ids(1, 2), Vec::new(), SECOND);
    ledger.renew(20 * SECOND);
    let renewal = ledger.take().unwrap();
    ledger.done(&renewal, &[(id(2), Missed::Other)]);
    let Err(Error::LeaseLost { entry_ids, .. }) = ledger.check(batch, 21 * SECOND) else { unreachable!() };
    assert_eq!(entry_ids, ["2-0"]);
    ledger.ack(batch, Chosen::All, 21 * SECOND);
    assert_eq!(work(&mut ledger), [(Action::Ack, vec![1])]);
    let report = ledger.report();
    assert_eq!((report.acked, report.stale, report.pending), (1, 1, 0));
}

#[test]
fn a_batch_with_an_entry_that_another_consumer_claimed_is_not_returned() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(0, ids(1, 2), Vec::new(), SECOND);
    assert!(!ledger.is_old(batch, 31 * SECOND));
    assert!(ledger.is_old(batch, 32 * SECOND));
    ledger.renew(32 * SECOND);
    let renewal = ledger.take().unwrap();
    ledger.done(&renewal, &[(id(2), Missed::Other)]);
    assert!(ledger.is_old(batch, 33 * SECOND));
}

#[test]
fn entries_that_are_no_longer_held_can_be_settled_by_their_ids() {
    let mut ledger = ledger(None);
    ledger.hold(0, ids(1, 6), Vec::new(), SECOND);
    ledger.renew(20 * SECOND);
    let renewal = ledger.take().unwrap();
    let missed = |ms| if ms % 2 == 0 { Missed::Deleted } else { Missed::Other };
    ledger.done(&renewal, &(1..=6).map(|ms| (id(ms), missed(ms))).collect::<Vec<_>>());
    ledger.ack_ids(0, &ids(1, 2), MINUTE);
    assert_eq!(ledger.fail_ids(0, &ids(3, 4), "bad", None, MINUTE), ids(3, 4));
    assert_eq!(ledger.release_ids(0, &ids(5, 6), SECOND, MINUTE), ids(5, 6));
    assert!(ledger.is_settled() && ledger.batches.numbers(|_| true).is_empty());
    assert_eq!(ledger.report(), ReadReport { acked: 1, stale: 3, lost: 2, ..ReadReport::default() });
}

#[test]
fn a_lease_ends_when_no_renewal_was_confirmed_in_time() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(0, ids(1, 2), Vec::new(), SECOND);
    assert!(ledger.check(batch, 55 * SECOND).is_ok());
    assert!(ledger.check(batch, 56 * SECOND).is_err());
    ledger.renew(30 * SECOND);
    let renewal = ledger.take().unwrap();
    ledger.returned(renewal);
    assert!(ledger.take().is_none(), "a renewal whose reply was lost is not repeated: the next one is due soon");
    assert!(ledger.check(batch, 56 * SECOND).is_err());
    ledger.renew(40 * SECOND);
    assert_eq!(work(&mut ledger), [(Action::Renew, vec![1, 2])]);
    assert!(ledger.check(batch, 94 * SECOND).is_ok());
    assert!(ledger.check(batch, 95 * SECOND).is_err());
    ledger.renew(SECOND + 30 * MINUTE);
    assert_eq!(work(&mut ledger), [], "longer than max_processing");
}

#[test]
fn an_entry_deleted_in_a_batch_that_is_not_delivered_is_lost() {
    let mut ledger = ledger(None);
    for is_late in [false, true] {
        let batch = ledger.hold(0, ids(1, 3), Vec::new(), SECOND);
        ledger.renew(20 * SECOND);
        let renewal = ledger.take().unwrap();
        if is_late {
            ledger.forget(batch);
        }
        ledger.done(&renewal, &[(id(2), Missed::Deleted)]);
        ledger.forget(batch);
        let rounds = 1 + u64::from(is_late);
        assert_eq!(ledger.report(), ReadReport { lost: rounds, renewals: 2 * rounds, ..ReadReport::default() });
    }
}

#[test]
fn an_entry_removed_in_a_batch_is_lost_unless_the_caller_acknowledges_it() {
    for forgets in [true, false] {
        let mut ledger = ledger(None);
        let batch = ledger.hold(0, ids(1, 4), Vec::new(), SECOND);
        ledger.ack(batch, Chosen::Mask(&[true, false, false, false]), SECOND);
        for ms in 1..=3 {
            ledger.removed(0, id(ms));
        }
        assert_eq!(ledger.report().lost, 0);
        if forgets {
            ledger.forget(batch);
            assert_eq!(ledger.report().lost, 2, "2-0 and 3-0; the first one is acknowledged");
            continue;
        }
        ledger.ack(batch, Chosen::Mask(&[false, true, false, false]), SECOND);
        ledger.release(batch, Chosen::Mask(&[false, false, true, true]), Duration::ZERO, SECOND);
        let ack = ledger.take().unwrap();
        ledger.done(&ack, &[(id(1), Missed::Gone)]);
        let release = ledger.take().unwrap();
        assert_eq!((&ack.ids[..], &release.ids[..]), (&[id(1)][..], &[id(4)][..]));
        ledger.done(&release, &[]);
        let report = ledger.report();
        assert_eq!((report.acked, report.lost, report.released, report.pending), (2, 1, 1, 0));
    }
}

#[test]
fn a_lost_entry_counts_once_until_the_server_has_its_acknowledgement() {
    let mut ledger = ledger(None);
    ledger.lost(0, id(1), SECOND);
    ledger.lost(0, id(1), SECOND);
    ledger.lost(1, id(1), SECOND);
    ledger.removed(0, id(1));
    assert_eq!(ledger.report().lost, 2);
    ledger.hold(0, vec![id(2)], Vec::new(), SECOND);
    ledger.removed(0, id(2));
    assert_eq!(ledger.report().lost, 2, "it is in a batch");
    ledger.removed(0, id(3));
    work(&mut ledger);
    ledger.lost(1, id(1), SECOND);
    assert_eq!(ledger.report().lost, 4, "the same ID in a stream that was replaced");
    let ack = ledger.take().unwrap();
    ledger.done(&ack, &[(id(1), Missed::Other)]);
    ledger.lost(1, id(1), SECOND);
    assert_eq!(ledger.report().lost, 4, "another consumer had claimed it, and this one claimed it back");
}

#[test]
fn an_entry_found_deleted_by_a_renewal_during_its_release_is_lost() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(0, ids(1, 3), Vec::new(), SECOND);
    ledger.renew(20 * SECOND);
    let renewal = ledger.take().unwrap();
    ledger.ack(batch, Chosen::Mask(&[true, false, false]), 20 * SECOND);
    ledger.release(batch, Chosen::All, Duration::ZERO, 20 * SECOND);
    ledger.done(&renewal, &[(id(1), Missed::Deleted), (id(2), Missed::Deleted)]);
    assert!(ledger.has(0, id(2)));
    while let Some(work) = ledger.take() {
        // This renewal is the last that the server knew about them.
        let gone: Vec<_> = work.ids.iter().filter(|of| **of < id(3)).map(|of| (*of, Missed::Gone)).collect();
        ledger.done(&work, &gone);
    }
    assert_eq!(ledger.report(), ReadReport { acked: 1, lost: 1, released: 1, renewals: 1, ..ReadReport::default() });
}

#[test]
fn an_entry_that_is_deleted_before_it_is_delivered_alone_is_lost() {
    let mut ledger = ledger(None);
    ledger.begin();
    let action = Action::Isolate { deliveries: 21 };
    let work = Work { stream: 0, action, ids: vec![id(1)], is_repeated: false, since: SECOND };
    ledger.done(&work, &[(id(1), Missed::Deleted)]);
    assert_eq!(ledger.report(), ReadReport { lost: 1, ..ReadReport::default() });
}

#[test]
fn an_acknowledgement_whose_reply_was_lost_is_repeated() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(0, ids(1, 3), Vec::new(), SECOND);
    ledger.ack(batch, Chosen::All, SECOND);
    let ack = ledger.take().unwrap();
    ledger.returned(ack);
    assert!(ledger.has(0, id(1)), "it is not delivered again meanwhile");
    let again = ledger.take().unwrap();
    assert!(again.is_repeated);
    ledger.done(&again, &[(id(1), Missed::Gone), (id(3), Missed::Other)]);
    let report = ledger.report();
    assert_eq!((report.acked, report.stale, report.unknown, report.pending), (2, 1, 0, 0));
}

#[test]
fn failed_entries_are_redelivered_later_each_time_and_end_as_dead_letters() {
    let mut ledger = ledger(Some(3));
    let mut deliveries = 1;
    for delay in [1, 2] {
        let batch = ledger.hold(0, ids(1, 1), vec![deliveries], SECOND);
        ledger.fail(batch, Chosen::All, "no", None, SECOND);
        let [(Action::Release { idle, deliveries: after }, _)] = &work(&mut ledger)[..] else { unreachable!() };
        assert_eq!(*idle, MINUTE.saturating_sub(delay * SECOND));
        deliveries = after + 1;
    }
    let batch = ledger.hold(0, ids(1, 1), vec![deliveries], SECOND);
    ledger.fail(batch, Chosen::All, "no", None, SECOND);
    let dead = Action::Dead { reason: "no".to_owned(), failures: 3, deletes: false };
    assert_eq!(work(&mut ledger), [(dead, vec![1])]);
    let report = ledger.report();
    assert_eq!((report.released, report.dead, report.pending), (2, 1, 0));
}

#[test]
fn a_refused_dead_letter_leaves_the_entry_for_a_later_attempt() {
    let mut ledger = ledger(Some(1));
    ledger.bury(0, id(1), "no".to_owned(), 1, SECOND);
    assert!(ledger.has(0, id(1)));
    let dead = ledger.take().unwrap();
    ledger.refused(&dead, CLOSED, SECOND);
    assert_eq!(ledger.take_error(), Some(CLOSED));
    let release = Action::Release { idle: Duration::ZERO, deliveries: rules::MOST_DELIVERIES + 1 };
    assert_eq!(work(&mut ledger), [(release, vec![1])]);
    assert!(!ledger.has(0, id(1)));
}

#[test]
fn refused_renewals_are_reported_once_until_one_succeeds() {
    let mut ledger = ledger(None);
    ledger.hold(0, ids(1, 2), Vec::new(), SECOND);
    let renew = |ledger: &mut Ledger, is_refused: bool| {
        ledger.renew(2 * SECOND);
        let renewal = ledger.take().unwrap();
        if is_refused {
            ledger.refused(&renewal, CLOSED, SECOND);
        } else {
            ledger.done(&renewal, &[]);
        }
        ledger.take_error()
    };
    let said = [true, true, false, true, true].map(|is_refused| renew(&mut ledger, is_refused));
    assert_eq!(said, [Some(CLOSED), None, None, Some(CLOSED), None]);
}

#[test]
fn released_entries_are_left_to_other_consumers_for_a_while() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(1, ids(1, 2), vec![1, 2], SECOND);
    ledger.release(batch, Chosen::All, Duration::ZERO, SECOND);
    let release = |deliveries| Action::Release { idle: MINUTE, deliveries };
    assert_eq!(work(&mut ledger), [(release(0), vec![1]), (release(1), vec![2])]);
    assert!(ledger.has_released(1, id(1), 60 * SECOND) && !ledger.has_released(0, id(1), 60 * SECOND));
    assert!(!ledger.has_released(1, id(1), 61 * SECOND));
}

#[test]
fn a_piece_of_work_has_one_stream_one_action_and_ascending_ids() {
    let mut ledger = ledger(None);
    let (first, second) =
        (ledger.hold(0, ids(5, 6), Vec::new(), SECOND), ledger.hold(1, ids(7, 7), Vec::new(), SECOND));
    let older = ledger.hold(0, ids(1, 1), Vec::new(), SECOND);
    for batch in [first, second, older] {
        ledger.ack(batch, Chosen::All, SECOND);
    }
    assert_eq!(work(&mut ledger), [(Action::Ack, vec![5, 6]), (Action::Ack, vec![7]), (Action::Ack, vec![1])]);
    let many = ledger.hold(0, ids(1, 2_500), Vec::new(), SECOND);
    ledger.ack(many, Chosen::All, SECOND);
    let sizes: Vec<usize> = work(&mut ledger).iter().map(|(_, ids)| ids.len()).collect();
    assert_eq!(sizes, [1_000, 1_000, 500]);
}

#[test]
fn the_ledger_is_settled_only_once_all_work_is_done() {
    let mut ledger = ledger(None);
    let batch = ledger.hold(0, ids(1, 1), Vec::new(), SECOND);
    ledger.ack(batch, Chosen::All, SECOND);
    let ack = ledger.take().unwrap();
    let action = Action::Isolate { deliveries: rules::MOST_DELIVERIES };
    let isolation = Work { stream: 0, action, ids: ids(2, 2), is_repeated: false, since: SECOND };
    ledger.begin();
    ledger.done(&isolation, &[]);
    assert!(!ledger.is_settled(), "the acknowledgement is still on its way");
    ledger.done(&ack, &[]);
    assert!(ledger.is_settled());
}

#[test]
fn a_consumer_of_the_same_name_counts_if_it_is_still_listed_later() {
    let names = Names { group: b"g".to_vec(), consumer: b"c".to_vec(), dead_letter_key: None };
    let name = || Arc::new(ClientName::new(&names.group, &names.consumer));
    let listed = |name: &ClientName| Value::BulkString(format!("id=7 name={} db=0\n", name.own()).into());
    let (mine, other) = (name(), name());
    for (reply, expected) in [(listed(&other), true), (listed(&mine), false), (Value::Nil, false)] {
        let mut ledger = ledger(None);
        ledger.look_again_at(2 * SECOND, Arc::clone(&mine));
        ledger.look_again(SECOND);
        assert!(ledger.is_settled(), "it is too early");
        ledger.look_again(2 * SECOND);
        let work = ledger.take().unwrap();
        ledger.look_again(3 * SECOND);
        assert!(ledger.take().is_none(), "once");
        assert_eq!(ledger.replied(&work, &reply), Some(()));
        assert_eq!((ledger.has_namesake(), ledger.is_settled()), (expected, true));
    }
    let mut ledger = ledger(None);
    ledger.look_again_at(SECOND, mine);
    ledger.look_again(SECOND);
    let work = ledger.take().unwrap();
    ledger.refused(&work, CLOSED, SECOND);
    assert_eq!(ledger.take_error(), None, "the right to list clients is optional");
    assert!(ledger.is_settled() && !ledger.has_namesake());
}
