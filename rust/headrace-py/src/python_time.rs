//! Dates and times as the objects of Python's `datetime`, which hold microseconds of the years 1 to 9999.

use arrow_schema::TimeUnit;
use headrace_core::civil;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDate, PyDateTime, PyDelta, PyTime, PyType, PyTzInfo};
use pyo3::{Borrowed, intern};

pub(crate) const MILLISECONDS_OF_DAY: i64 = 86_400_000;
const MICROSECONDS_OF_SECOND: i64 = 1_000_000;
const SECONDS_OF_DAY: i64 = 86_400;
const MICROSECONDS_OF_DAY: i64 = SECONDS_OF_DAY * MICROSECONDS_OF_SECOND;

/// The time zone of a column.
pub(crate) enum Zone {
    /// None: the values are times of a calendar and a clock.
    Naive,
    /// An offset from UTC in microseconds, and the object with it.
    Fixed(i64, Py<PyTzInfo>),
    /// One whose offset depends on the time.
    Named(Py<PyTzInfo>),
    /// One that Python does not have.
    Unknown(String),
}

impl Zone {
    /// The zone with the name that an Arrow type has: as pyarrow, an offset such as `+01:30`, or a name of the IANA database.
    pub(crate) fn named(py: Python<'_>, name: Option<&str>) -> Self {
        let Some(name) = name else { return Self::Naive };
        let found = match offset(name) {
            Some(offset) => delta(py, offset).and_then(|offset| PyTzInfo::fixed_offset(py, offset)),
            None => zone_info(py, name),
        };
        let utc = || PyTzInfo::utc(py).map(Borrowed::to_owned);
        // A system may have no time zones at all.
        let found = if name == "UTC" { found.or_else(|_| utc()) } else { found };
        match (found, offset(name).or_else(|| (name == "UTC").then_some(0))) {
            (Ok(zone), Some(offset)) => Self::Fixed(offset, zone.unbind()),
            (Ok(zone), None) => Self::Named(zone.unbind()),
            (Err(error), _) => Self::Unknown(format!("the time zone {name:?} is unknown: {error}")),
        }
    }

    /// The time of a number of microseconds after 1970-01-01 in UTC.
    pub(crate) fn datetime<'py>(&self, py: Python<'py>, microseconds: i64) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Naive => datetime(py, microseconds, None),
            Self::Fixed(offset, zone) => {
                let local = microseconds.checked_add(*offset).ok_or_else(|| outside(microseconds, "µs"))?;
                datetime(py, local, Some(zone.bind(py)))
            }
            Self::Named(zone) => {
                let utc = datetime(py, microseconds, Some(zone.bind(py)))?;
                zone.bind(py).call_method1(intern!(py, "fromutc"), (utc,))
            }
            Self::Unknown(reason) => Err(PyValueError::new_err(reason.clone())),
        }
    }
}

/// The microseconds of `+01:30`.
fn offset(name: &str) -> Option<i64> {
    let [sign @ (b'+' | b'-'), hour, ten_hours, b':', minute, ten_minutes] = *name.as_bytes() else { return None };
    let digits = [hour, ten_hours, minute, ten_minutes].map(|digit| i64::from(digit.wrapping_sub(b'0')));
    let [hours, minutes] = [digits[0] * 10 + digits[1], digits[2] * 10 + digits[3]];
    let is_valid = digits.iter().all(|digit| *digit < 10) && hours < 24 && minutes < 60;
    let offset = (hours * 60 + minutes) * 60 * MICROSECONDS_OF_SECOND;
    is_valid.then_some(if sign == b'-' { -offset } else { offset })
}

fn zone_info<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyTzInfo>> {
    static ZONE_INFO: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(ZONE_INFO.import(py, "zoneinfo", "ZoneInfo")?.call1((name,))?.cast_into()?)
}

fn datetime<'py>(
    py: Python<'py>,
    microseconds: i64,
    zone: Option<&Bound<'py, PyTzInfo>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (day, rest) = (microseconds.div_euclid(MICROSECONDS_OF_DAY), microseconds.rem_euclid(MICROSECONDS_OF_DAY));
    let (year, month, day) = date_of(day).ok_or_else(|| outside(microseconds, "µs"))?;
    let [hour, minute, second, microsecond] = clock(rest);
    let [hour, minute, second] = [hour, minute, second].map(|part| part as u8);
    Ok(PyDateTime::new(py, year, month, day, hour, minute, second, microsecond, zone)?.into_any())
}

/// The time of an entry ID, in UTC.
pub(crate) fn utc(py: Python<'_>, milliseconds: u64) -> PyResult<Bound<'_, PyAny>> {
    let microseconds = i64::try_from(milliseconds).ok().and_then(|value| value.checked_mul(1000));
    let microseconds = microseconds.ok_or_else(|| outside(milliseconds, "ms"))?;
    datetime(py, microseconds, Some(&*PyTzInfo::utc(py)?))
}

/// The date of a number of days after 1970-01-01.
pub(crate) fn date(py: Python<'_>, days: i64) -> PyResult<Bound<'_, PyAny>> {
    let (year, month, day) = date_of(days).ok_or_else(|| outside(days, "days"))?;
    Ok(PyDate::new(py, year, month, day)?.into_any())
}

/// The time of a day.
pub(crate) fn time(py: Python<'_>, value: i64, unit: TimeUnit) -> PyResult<Bound<'_, PyAny>> {
    let of_day = microseconds(value, unit)?;
    if !(0..MICROSECONDS_OF_DAY).contains(&of_day) {
        return Err(PyValueError::new_err(format!("{of_day} microseconds are no time of a day")));
    }
    let [hour, minute, second, microsecond] = clock(of_day);
    let [hour, minute, second] = [hour, minute, second].map(|part| part as u8);
    Ok(PyTime::new(py, hour, minute, second, microsecond, None)?.into_any())
}

/// A duration.
pub(crate) fn timedelta(py: Python<'_>, value: i64, unit: TimeUnit) -> PyResult<Bound<'_, PyAny>> {
    if unit == TimeUnit::Second {
        let days = i32::try_from(value.div_euclid(SECONDS_OF_DAY)).map_err(|_| outside(value, name_of(unit)))?;
        return Ok(PyDelta::new(py, days, value.rem_euclid(SECONDS_OF_DAY) as i32, 0, false)?.into_any());
    }
    // A duration of milliseconds may have more microseconds than an i64 holds.
    let (seconds, microseconds) = if unit == TimeUnit::Millisecond {
        (value.div_euclid(1000), value.rem_euclid(1000) * 1000)
    } else {
        let value = microseconds(value, unit)?;
        (value.div_euclid(MICROSECONDS_OF_SECOND), value.rem_euclid(MICROSECONDS_OF_SECOND))
    };
    let days = i32::try_from(seconds.div_euclid(SECONDS_OF_DAY)).map_err(|_| outside(value, name_of(unit)))?;
    Ok(PyDelta::new(py, days, seconds.rem_euclid(SECONDS_OF_DAY) as i32, microseconds as i32, false)?.into_any())
}

/// A value of this unit in microseconds, without a loss.
pub(crate) fn microseconds(value: i64, unit: TimeUnit) -> PyResult<i64> {
    let scaled = match unit {
        TimeUnit::Second => value.checked_mul(MICROSECONDS_OF_SECOND),
        TimeUnit::Millisecond => value.checked_mul(1000),
        TimeUnit::Microsecond => Some(value),
        TimeUnit::Nanosecond if value % 1000 == 0 => Some(value / 1000),
        TimeUnit::Nanosecond => {
            let message = format!(
                "{value} ns has nanoseconds, and Python's datetime holds microseconds; read it with an Arrow library"
            );
            return Err(PyValueError::new_err(message));
        }
    };
    scaled.ok_or_else(|| outside(value, name_of(unit)))
}

fn delta(py: Python<'_>, microseconds: i64) -> PyResult<Bound<'_, PyDelta>> {
    timedelta(py, microseconds, TimeUnit::Microsecond)?.cast_into().map_err(Into::into)
}

/// Year, month and day; `None` outside the years 1 to 9999.
fn date_of(days: i64) -> Option<(i32, u8, u8)> {
    const DAYS: std::ops::RangeInclusive<i64> = -719_162..=2_932_896;
    DAYS.contains(&days).then(|| {
        let (year, month, day) = civil(days);
        (year as i32, month as u8, day as u8)
    })
}

/// Hours, minutes, seconds and microseconds of a day.
#[allow(clippy::cast_sign_loss)] // the argument is not negative
fn clock(microseconds: i64) -> [u32; 4] {
    let seconds = (microseconds / MICROSECONDS_OF_SECOND) as u32;
    [seconds / 3600, seconds / 60 % 60, seconds % 60, (microseconds % MICROSECONDS_OF_SECOND) as u32]
}

fn name_of(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "µs",
        TimeUnit::Nanosecond => "ns",
    }
}

fn outside(value: impl std::fmt::Display, unit: &str) -> PyErr {
    let message = format!(
        "{value} {unit} is more than Python's datetime holds, the years 1 to 9999; read it with an Arrow library"
    );
    PyValueError::new_err(message)
}
