//! `SOURCE_DATE_EPOCH`, which reproducible builds set: everything is made at that time, and nothing is left to chance.

use ironmap::fs::Timestamp;

use crate::failure::Failure;

const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// The time, in seconds since 1970; `None` where it is not set.
///
/// # Errors
/// It is set to something else than a number.
pub(crate) fn source_date() -> Result<Option<i64>, Failure> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let wrong = || Failure::usage(format_args!("{VARIABLE}={} is no number", text.display()));
    seconds.map(Some).ok_or_else(wrong)
}

/// The same as a time stamp.
pub(crate) fn source_time() -> Result<Option<Timestamp>, Failure> {
    Ok(source_date()?.map(at))
}

/// A whole second.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}
