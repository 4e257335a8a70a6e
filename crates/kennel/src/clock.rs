//! Points in time as people read them. They are in UTC, so that they mean the same on every machine.

const DAY: u64 = 86_400;

/// Returns the time of day of a second since 1970.
pub(crate) fn time_of_day(seconds: u64) -> String {
    let seconds = seconds % DAY;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Returns the date and the time of day of a second since 1970.
pub(crate) fn date_and_time(seconds: u64) -> String {
    let (year, month, day) = date(seconds / DAY);
    format!("{year:04}-{month:02}-{day:02} {}", time_of_day(seconds))
}

/// Returns year, month and day of a day since 1970. It counts in periods of 400 years, which all have the same number of
/// days, and in years that begin in March, so that the leap day is the last one.
fn date(days: u64) -> (u64, u64, u64) {
    const TO_1970: u64 = 719_468;
    const PERIOD: u64 = 146_097;
    let (period, day) = ((days + TO_1970) / PERIOD, (days + TO_1970) % PERIOD);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (period * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times() {
        assert_eq!(time_of_day(DAY * 3 + 3600 * 23 + 59 * 60 + 7), "23:59:07");
        assert_eq!(date_and_time(0), "1970-01-01 00:00:00");
        assert_eq!(date_and_time(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(date_and_time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date_and_time(1_794_940_954), "2026-11-17 18:42:34");
        assert_eq!(date_and_time(4_107_542_400), "2100-03-01 00:00:00");
    }
}
