// Payloads of others may be anything: null, a list, bytes, an object without the field, or with one
// that is not a text. No function here throws.
"use strict";

/** A field of a payload as text of at most this many characters; "" if it is missing. */
function fieldText(payload, name, lengthMax) {
  const text = textOf(fieldOf(payload, name));
  return text.length > lengthMax ? `${text.slice(0, lengthMax)}…` : text;
}

function fieldOf(payload, name) {
  const has = payload !== null && typeof payload === "object" && Object.hasOwn(payload, name);
  return has ? payload[name] : undefined;
}

/** An object is shown as its JSON: its `toString` may not be a function. */
function textOf(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

const NO_CHANGE = { joins: {}, leaves: {} };

/** A payload unchanged, but a malformed presence payload becomes an empty one. */
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
