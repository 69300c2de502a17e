// Elements of a page. Whatever text they are given is set as text, never as markup.
"use strict";

/** An element; `properties` are set on it, children may be strings, `null` is left out. */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  const { dataset = {}, attributes = {}, ...rest } = properties;
  Object.assign(node, rest);
  Object.assign(node.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
