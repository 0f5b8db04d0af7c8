// Numbers as text. A number and its unit stay on one line.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const digits = (value) => (value >= 100 || Number.isInteger(value) ? Math.round(value).toString() : value >= 10 ? value.toFixed(1) : value.toFixed(2));

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? digits(value) : Math.round(value)}\u00a0${UNITS[unit]}`;
}

export const rate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

export const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

export function number(value) {
  if (value === null || value === undefined) return "–";
  return value >= 10000 ? count(value) : value === 0 ? "0" : value < 0.01 ? "<0.01" : digits(value);
}

export const share = (value) => (value === null || value === undefined ? "–" : `${digits(100 * value)}\u00a0%`);

/** A short time, such as a latency. */
export function latency(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  return seconds < 1 ? `${digits(seconds * 1000)} ms` : `${digits(seconds)} s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${digits(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export const ago = (timeS) => `${duration(Math.max(Date.now() / 1000 - timeS, 0))} ago`;

/** Date and time here, as a `time` element shows it. */
export function when(timeS) {
  const date = new Date(timeS * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

export function clock(timeS) {
  return new Date(timeS * 1000).toTimeString().slice(0, 8);
}

/** The time of today, or the day before it. */
export const moment = (timeS) => (when(timeS).slice(0, 10) === when(Date.now() / 1000).slice(0, 10) ? clock(timeS) : when(timeS).slice(5));
