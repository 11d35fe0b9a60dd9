//! Reads `SOURCE_DATE_EPOCH`, the time that reproducible builds set. If the variable is set, all timestamps are this time, and no value is
//! random.

const VARIABLE: &str = "SOURCE_DATE_EPOCH";
/// The last second that an ext4 timestamp can store. A timestamp has 34 bits, and its lowest value is in the year 1901.
const LAST: i64 = (3 << 32) + i32::MAX as i64;

/// The time in seconds since 1970, or `None` if the variable is not set.
///
/// # Errors
/// Fails if the variable is set, but is not a number of seconds that a volume can store.
pub(crate) fn source_date() -> Result<Option<i64>, String> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let wrong = || {
        let text = text.display();
        format!("{VARIABLE}={text} is not a number of seconds from 0 to {LAST}")
    };
    seconds.filter(|seconds| (0..=LAST).contains(seconds)).map(Some).ok_or_else(wrong)
}
