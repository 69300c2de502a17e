// Numbers as people read them. Shared by all pages and the report.
"use strict";

const Format = (() => {
  const THIN = "\u202f";
  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const PERCENTILES = {
    p50: "p50", p90: "p90", p95: "p95", p99: "p99", p99_9: "p99.9", p99_99: "p99.99",
    p99_999: "p99.999", max: "max",
  };

  /** Three digits that matter, without zeros behind the point. */
  function digits(value) {
    const size = Math.abs(value);
    if (size >= 100 || value === 0) return String(Math.round(value));
    return String(Number(value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : size >= 0.01 ? 3 : 4)));
  }

  /** Whole numbers with thin spaces between the thousands. */
  function whole(value) {
    if (!isNumber(value)) return "–";
    return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, THIN);
  }

  function isNumber(value) {
    return typeof value === "number" && Number.isFinite(value);
  }

  function scaled(value, unit) {
    const prefix = PREFIXES.find(([size]) => Math.abs(value) >= size * 0.99995);
    const [number, letter] = prefix ? [digits(value / prefix[0]), prefix[1]] : [digits(value), ""];
    return letter + unit === "" ? number : `${number}${THIN}${letter}${unit}`;
  }

  /** Microseconds. */
  function micros(us) {
    if (us === 0) return `0${THIN}µs`;
    if (Math.abs(us) < 999.5) return `${digits(us)}${THIN}µs`;
    if (Math.abs(us) < 999.5e3) return `${digits(us / 1e3)}${THIN}ms`;
    return us < 120e6 ? `${digits(us / 1e6)}${THIN}s` : clock(us / 1e6);
  }

  /** Seconds as `1:05` or `2:01:05`. */
  function clock(seconds) {
    const all = Math.max(0, Math.round(seconds));
    const pad = (number) => String(number).padStart(2, "0");
    const [hours, minutes] = [Math.floor(all / 3600), Math.floor(all / 60) % 60];
    const rest = pad(all % 60);
    return hours > 0 ? `${hours}:${pad(minutes)}:${rest}` : `${minutes}:${rest}`;
  }

  /** Seconds in words, for tables. */
  function span(seconds) {
    if (!isNumber(seconds)) return "–";
    if (seconds < 120) return `${digits(seconds)}${THIN}s`;
    if (seconds < 7200) return `${digits(seconds / 60)}${THIN}min`;
    return `${digits(seconds / 3600)}${THIN}h`;
  }

  /** By kind of value; `null` and what is no number is a dash. */
  const KINDS = {
    count: (value) => (Math.abs(value) < 1e5 ? whole(value) : scaled(value, "")),
    rate: (value) => scaled(value, ""),
    bytes: (value) => scaled(value, "B"),
    us: micros,
    percent: (value) => `${digits(value)}${THIN}%`,
    share: (value) => `${digits(value * 100)}${THIN}%`,
    seconds: span,
  };

  function as(kind, value) {
    return isNumber(value) ? KINDS[kind](value) : "–";
  }

  return { as, clock, digits, isNumber, micros, scaled, span, whole, PERCENTILES };
})();
