// The live page: receives the run's events, controls it, and reports a lost connection.
"use strict";

const TOKEN = document.querySelector('meta[name="token"]').content;
const RATES = [
  0.1, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 50, 75, 100,
];

const live = {
  page: null,
  view: null,
  lost: el("div", {
    className: "notice bad floating", hidden: true, dataset: { testid: "lost" },
    attributes: { role: "status" },
  }),
  buttons: null,
};

/** Takes over what changed in a second, and adds or replaces the last point of the series. */
function merge(view, tick) {
  const {
    point, point_times: times, point_errors: kinds = {}, target_point: target, ...rest
  } = tick;
  Object.assign(view, rest);
  const { columns, metrics } = view.series;
  view.series.errors ??= {};
  const ends = columns.t_s ?? [];
  const last = ends.length - 1;
  const same = last >= 0 && ends[last] > point.t_s - point.span_s + 0.001;
  const at = same ? last : last + 1;
  if ("t_s" in point) {
    for (const [name, value] of Object.entries(point)) (columns[name] ??= [])[at] = value;
    for (const [name, row] of Object.entries(times)) {
      const metric = (metrics[name] ??= {});
      for (const [key, value] of Object.entries(row)) put(metric, key, at, value, null);
    }
    for (const [kind, count] of Object.entries(kinds)) {
      put(view.series.errors, kind, at, count, 0);
    }
  }
  const newest = view.target?.columns.t_s.at(-1) ?? -1;
  if (target && target.t_s > newest) {
    view.target ??= { columns: { t_s: [] } };
    const index = view.target.columns.t_s.length;
    for (const [name, value] of Object.entries(target)) {
      put(view.target.columns, name, index, value, null);
    }
  }
}

/** Sets an element of a column that may be shorter than it should be. */
function put(columns, name, at, value, missing) {
  const column = (columns[name] ??= []);
  while (column.length < at) column.push(missing);
  column[at] = value;
}

function show() {
  const root = document.getElementById("app");
  if (live.page) {
    live.page.update(live.view);
  } else {
    live.page = new RunPage(root, live.view, { live: true });
    buildControls(live.page.controls);
    live.page.main.prepend(live.lost);
  }
  showControls();
}

function report(text) {
  live.lost.textContent = text;
  live.lost.hidden = text === "";
}

function listen() {
  const source = new EventSource("events");
  source.addEventListener("whole", (event) => {
    live.view = parseView(event.data);
    report("");
    show();
    if (live.view.ending) source.close();
  });
  source.addEventListener("tick", (event) => {
    if (!live.view) return;
    merge(live.view, parseView(event.data));
    report("");
    show();
    if (live.view.ending) source.close();
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED && !live.view?.ending) setTimeout(listen, 1000);
    if (live.view?.ending) return;
    report("The run does not answer. Trying again; the figures below are the last received.");
    document.getElementById("waiting")?.replaceChildren("The run does not answer; trying again.");
  });
}

async function command(name, factor = null) {
  const body = factor === null ? { command: name } : { command: name, factor };
  try {
    const answer = await fetch("control", {
      method: "POST",
      headers: { "content-type": "application/json", "x-simurgh-token": TOKEN },
      body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Error(await answer.text());
    live.view.control = await answer.json();
    show();
  } catch (error) {
    // A page from before a restart has the old token: the new one comes with a reload.
    report(`The command failed: ${error.message}. Reload the page if it fails again.`);
  }
}

/** The next of `RATES` above or below a factor. */
function nextRate(factor, up) {
  const others = up ? RATES.filter((rate) => rate > factor * 1.001)
    : RATES.filter((rate) => rate < factor * 0.999).reverse();
  return others[0] ?? factor;
}

function buildControls(box) {
  const button = (id, label, title, onclick, className = "") => el("button", {
    type: "button", title, onclick, className, dataset: { testid: id },
  }, label);
  const factor = () => live.view.control.rate;
  const rate = el("input", {
    type: "number", min: "0.01", max: "100", step: "any", dataset: { testid: "rate" },
    attributes: { "aria-label": "Rate factor" },
    onchange: () => { if (rate.reportValidity()) command("rate", Number(rate.value)); },
  });
  const dialog = stopDialog();
  live.buttons = {
    pause: button("pause", "Pause", "No new users; running users continue (P)", () => (
      command(live.view.control.paused ? "resume" : "pause"))),
    slower: button("slower", "−", "Fewer arrivals (-)", () => (
      command("rate", nextRate(factor(), false)))),
    rate,
    faster: button("faster", "+", "More arrivals (+)", () => (
      command("rate", nextRate(factor(), true)))),
    stop: button("stop", "Stop", "Ends the run and writes its report", () => dialog.showModal(),
      "danger"),
  };
  const { pause, slower, faster, stop } = live.buttons;
  box.append(
    el("div", { className: "rate", attributes: { role: "group", "aria-label": "Arrival rate" } },
      slower, el("label", {}, "×", rate), faster),
    pause, stop, dialog);
  document.addEventListener("keydown", (event) => shortcut(event, dialog));
}

function shortcut(event, dialog) {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (typing || dialog.open || event.ctrlKey || event.metaKey || event.altKey) return;
  const { pause, slower, faster } = live.buttons;
  const button = { p: pause, P: pause, "-": slower, "+": faster }[event.key];
  if (button && !button.disabled) button.click();
}

function stopDialog() {
  const close = (value) => () => dialog.close(value);
  const dialog = el("dialog", { attributes: { "aria-labelledby": "stop-title" } },
    el("h2", { id: "stop-title" }, "Stop the run?"),
    el("p", {}, "All users disconnect. The report contains the measurements so far."),
    el("div", { className: "dialog-buttons" },
      el("button", { type: "button", onclick: close("keep"), autofocus: true }, "Keep running"),
      el("button", {
        type: "button", className: "danger", onclick: close("stop"),
        dataset: { testid: "stop-confirm" },
      }, "Stop the run")));
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "stop") command("stop");
    dialog.returnValue = "";
  });
  return dialog;
}

function showControls() {
  const { control, ending } = live.view;
  const { pause, slower, rate, faster, stop } = live.buttons;
  live.page.controls.hidden = Boolean(ending) || !control;
  if (!control) return;
  pause.textContent = control.paused ? "Resume" : "Pause";
  stop.textContent = control.stopping ? "Stop now" : "Stop";
  for (const node of [pause, slower, rate, faster]) node.disabled = control.stopping;
  if (document.activeElement !== rate) rate.value = String(control.rate);
}

listen();
