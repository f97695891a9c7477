// Figures as text.

const scaled = (value, units, base) => {
  let at = 0;
  while (Math.abs(value) >= base && at < units.length - 1) {
    value /= base;
    at += 1;
  }
  return `${Math.abs(value) >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1)} ${units[at]}`;
};

export const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB"], 1000);
export const memory = (value) => scaled(value, ["B", "KiB", "MiB", "GiB"], 1024);
export const rate = (value) => scaled(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"], 1000);
export const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.01 ? 1 : 0)}%`);
export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : /(s|ch)$/.test(word) ? "es" : "s"}`;

export const duration = (seconds) => {
  if (seconds == null) return "–";
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  if (seconds >= 120) return `${Math.floor(seconds / 60)} min`;
  if (seconds >= 1) return `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  return `${(seconds * 1e6).toFixed(0)} µs`;
};

export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");
