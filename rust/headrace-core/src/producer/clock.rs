//! The time of day. It is read once per message, so the cheapest clock is used.

/// Seconds since the epoch. On Linux as of the kernel's last tick, some milliseconds ago.
#[inline]
#[cfg(target_os = "linux")]
pub(super) fn unix_second() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec).unwrap_or_default()
}

/// Seconds since the epoch.
#[cfg(not(target_os = "linux"))]
pub(super) fn unix_second() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// Milliseconds since the epoch.
pub(super) fn unix_millis() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}
