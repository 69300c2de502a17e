//! Reads the output of `wrk`.

use std::time::Duration;

use super::tools::Figures;

/// Reads the text of a run without errors; `None` if it has another form.
pub(super) fn parse(text: &str, time: Duration) -> Option<Figures> {
    // Only at the start of a line: the first table has percentages at its end.
    let rest = |start: &str| text.lines().find_map(|line| line.trim().strip_prefix(start));
    let after = |start: &str| rest(start)?.split_whitespace().next();
    let numbers = |text: &str| -> Vec<u64> {
        text.split([' ', ',', ':']).filter_map(|word| word.parse().ok()).collect()
    };
    let broken: u64 = rest("Socket errors:").map(numbers).into_iter().flatten().sum();
    let refused: u64 = rest("Non-2xx or 3xx").map(numbers).into_iter().flatten().sum();
    let requests = text.lines().find(|line| line.contains(" requests in "))?;
    if broken + refused > 0 {
        return None;
    }
    let requests: f64 = requests.split_whitespace().next()?.parse().ok()?;
    let rate: f64 = after("Requests/sec:")?.parse().ok()?;
    // It rounds the time to a hundredth of a second, but not the rate.
    let seconds = if rate > 0.0 { requests / rate } else { time.as_secs_f64() };
    let (p50_us, p99_us) = (microseconds(after("50%")?)?, microseconds(after("99%")?)?);
    Some(Figures { requests, seconds, p50_us, p99_us, measured_us: None, cpu_s: 0.0 })
}

/// A time in wrk's notation.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];
    let (unit, factor) = units.into_iter().find(|(unit, _)| text.ends_with(unit))?;
    Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 2s test @ http://127.0.0.1:1/\n  1 threads and 8 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   337.00us  185.00us   \
        9.17ms   98.43%\n    Req/Sec    24.40k     1.95k   26.90k    80.95%\n  Latency \
        Distribution\n     50%  312.00us\n     75%  345.00us\n     90%  389.00us\n     99%    \
        1.07ms\n  50968 requests in 2.10s, 133.06MB read\n";

    const TIME: Duration = Duration::from_secs(2);

    #[test]
    fn wrk_output_is_parsed() {
        let text = format!("{OUTPUT}Requests/sec:  24270.07\nTransfer/sec:     63.36MB\n");
        let found = parse(&text, TIME).unwrap();
        assert_eq!((found.requests, found.p50_us, found.p99_us), (50_968.0, 312.0, 1_070.0));
        assert!((found.seconds - 2.1).abs() < 0.001, "{found:?}");
        let broken = "  Socket errors: connect 0, read 3, write 0, timeout 1\n";
        assert_eq!(parse(&format!("{OUTPUT}{broken}Requests/sec:  1.0\n"), TIME), None);
        assert_eq!(parse("nothing", TIME), None);
    }

    #[test]
    fn percentages_of_the_first_wrk_table_are_not_quantiles() {
        let text = format!("{OUTPUT}Requests/sec:  1.0\n").replace("98.43%", "98.50%");
        let text = text.replace("80.95%", "80.99%");
        let times = parse(&text, TIME).map(|it| (it.p50_us, it.p99_us));
        assert_eq!(times, Some((312.0, 1_070.0)));
    }
}
