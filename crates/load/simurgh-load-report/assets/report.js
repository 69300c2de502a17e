// The report: one view, which is in the file itself.
"use strict";

const view = parseView(document.getElementById("data").textContent);
const page = new RunPage(document.getElementById("app"), view, { live: false });
if (view.scenario_text) {
  page.main.append(el("section", { className: "panel", dataset: { testid: "scenario" } },
    el("details", {}, el("summary", {}, el("h2", {}, "Scenario")),
      el("pre", { tabIndex: 0 }, view.scenario_text))));
}
