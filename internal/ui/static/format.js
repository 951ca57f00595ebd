// Figures and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Returns a count with its thousands set apart. */
export const count = (n) => whole.format(n);

/** Returns a figure with a decimal where there is one that matters. */
export const figure = (n) => (Math.abs(n) < 100 ? fine : whole).format(n);

/** Returns a figure for a narrow place: 1.2M. */
export const compact = (n) => short.format(n);

/** Returns "1 worker", "2 workers". */
export const counted = (n, what, many = what + "s") => count(n) + " " + (n === 1 ? what : many);

/** Returns seconds with one decimal: they stay aligned. */
export const seconds = (ms) => (Math.max(0, ms) / 1000).toFixed(1) + " s";

/** Returns a duration in the unit that fits it. */
export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return s + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " days";
}

/** Returns the time of day, and the day if it is not today. */
export function clock(unixMs) {
  const at = new Date(unixMs);
  if (Number.isNaN(at.getTime())) return "unknown";
  return day.format(at) === day.format(new Date()) ? time.format(at) : day.format(at) + " " + time.format(at);
}

/** Returns how long ago a time was. */
export const ago = (unixMs) => duration(Date.now() - unixMs) + " ago";
