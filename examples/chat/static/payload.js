// What others send may be anything: null, a list, bytes, an object without the field that is
// wanted, or with one that is no text. Nothing here throws, whatever it is given.
"use strict";

/** A field of a payload as text of at most so many characters; "" where there is none. */
function fieldText(payload, name, lengthMax) {
  const text = textOf(fieldOf(payload, name));
  return text.length > lengthMax ? `${text.slice(0, lengthMax)}…` : text;
}

function fieldOf(payload, name) {
  const has = payload !== null && typeof payload === "object" && Object.hasOwn(payload, name);
  return has ? payload[name] : undefined;
}

/** An object is shown as its JSON: it may have a `toString` that is none. */
function textOf(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
