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

const NO_CHANGE = { joins: {}, leaves: {} };

/** A payload as it is, but one of presence that has not its shape as one of nobody. */
function presencePayload(event, payload) {
  if (event === "presence_state") return isPresenceList(payload) ? payload : {};
  if (event !== "presence_diff") return payload;
  const parts = [fieldOf(payload, "joins"), fieldOf(payload, "leaves")];
  return parts.every(isPresenceList) ? payload : NO_CHANGE;
}

/** Whether it is `{key: {metas: [{…}, …]}}`. */
function isPresenceList(list) {
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const isEntry = (entry) => Array.isArray(fieldOf(entry, "metas")) && entry.metas.every(isObject);
  return isObject(list) && Object.values(list).every(isEntry);
}
