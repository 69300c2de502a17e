// The page at `/`, again with the token that this tab gave to the observer.
"use strict";

const token = sessionStorage.getItem("simurgh-token");
if (token) {
  fetch("./", { headers: { authorization: `Bearer ${token}` } }).then(async (answer) => {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
  }).catch(() => {
    // The text that asks for the token stays.
  });
}
