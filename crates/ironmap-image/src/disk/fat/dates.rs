//! Time stamps of FAT: a date from 1980 to 2107, and a time in steps of two seconds. They are in UTC here, so that the time zone of the
//! builder does not matter.

const DAY: i64 = 86_400;
/// 1980-01-01, in days since 1970.
const FIRST: i64 = 3_652;
/// 2107-12-31, in days since 1970.
const LAST: i64 = 50_402;

/// Converts seconds since 1970 to a time and a date. A time outside of the years 1980 to 2107 becomes the nearest possible time.
pub(super) fn time_and_date(seconds: i64) -> [u16; 2] {
    let seconds = seconds.clamp(FIRST * DAY, LAST * DAY + DAY - 1);
    let (days, second) = (seconds / DAY - FIRST, seconds % DAY);
    // From 1980 to 2099, every fourth year is a leap year, beginning with 1980. The year 2100 has no 29 February.
    let days = if days >= 43_889 { days + 1 } else { days };
    let (group, day) = (days / 1461, days % 1461);
    let (year, mut day) = match day {
        0..366 => (group * 4, day),
        _ => (group * 4 + (day - 1) / 365, (day - 1) % 365),
    };
    let february = if year % 4 == 0 { 29 } else { 28 };
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < len {
            break;
        }
        day -= len;
        month += 1;
    }
    let date = (year << 9) | (month << 5) | (day + 1);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let time = (hour << 11) | (minute << 5) | (second / 2);
    [time as u16, date as u16]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected dates are those of date(1).
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, year, month, day, hour, minute, second) in [
            (0, 1980, 1, 1, 0, 0, 0),
            (315_532_800, 1980, 1, 1, 0, 0, 0),
            (951_782_399, 2000, 2, 28, 23, 59, 58),
            (951_782_400, 2000, 2, 29, 0, 0, 0),
            (1_700_000_001, 2023, 11, 14, 22, 13, 20),
            (1_735_689_599, 2024, 12, 31, 23, 59, 58),
            (4_107_542_399, 2100, 2, 28, 23, 59, 58),
            (4_107_542_400, 2100, 3, 1, 0, 0, 0),
            (4_354_819_199, 2107, 12, 31, 23, 59, 58),
            (i64::MAX, 2107, 12, 31, 23, 59, 58),
        ] {
            let date = ((year - 1980) << 9) | (month << 5) | day;
            let time = (hour << 11) | (minute << 5) | (second / 2);
            assert_eq!(time_and_date(seconds), [time, date], "{seconds}");
        }
    }
}
