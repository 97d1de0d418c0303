// Numbers with the digits that mean something, and their units.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function digits(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return whole.format(value);
  if (size >= 10) return value.toFixed(1);
  return value === 0 ? "0" : size < 0.995 ? value.toFixed(2) : value.toFixed(1);
}

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function celsius(value) {
  return value === null || value === undefined ? "–" : `${value.toFixed(1)} °C`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0.999 || value === 0 ? 0 : 1)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const [scale, unit] = value >= 1e9 ? [1e9, "GB"] : value >= 1e6 ? [1e6, "MB"] : [1e3, "kB"];
  return `${digits(value / scale)} ${unit}`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// Engine, device and variant of a lane such as openvino/gpu:1/int8.
export function lane(name) {
  const first = name.indexOf("/"), last = name.lastIndexOf("/");
  return { engine: name.slice(0, first), device: name.slice(first + 1, last), precision: name.slice(last + 1) };
}
