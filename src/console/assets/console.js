// What the console does more where scripts run: numbers stay fresh, times tick, keys work, command lines follow the forms.
// Everything also works without it.
"use strict";

const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
const body = document.body;

// ---- Times -------------------------------------------------------------------------------------------------------------------

const zh = document.documentElement.lang.startsWith("zh");
const UNITS = { s: "秒", m: "分钟", h: "小时", d: "天" };

// The same words as the server writes.
function relative(at, now) {
  const ms = now - at;
  const s = Math.floor(Math.abs(ms) / 1000);
  if (s < 1) return body.dataset.now;
  const [n, unit] = s < 60 ? [s, "s"] : s < 3600 ? [Math.floor(s / 60), "m"] : s < 172800 ? [Math.floor(s / 3600), "h"] : [Math.floor(s / 86400), "d"];
  if (zh) return `${n}${UNITS[unit]}${ms > 0 ? "前" : "后"}`;
  return ms > 0 ? `${n}${unit} ago` : `in ${n}${unit}`;
}

function tick() {
  const now = Date.now();
  for (const time of all("time[data-at]")) {
    const text = relative(Number(time.dataset.at), now);
    if (time.textContent !== text) time.textContent = text;
  }
}

// The hover says the time here as well as in UTC.
function localise(root) {
  for (const time of all("time[data-at]", root)) {
    if (!time.dataset.utc) {
      time.dataset.utc = time.title;
      time.title = `${new Date(Number(time.dataset.at)).toLocaleString(document.documentElement.lang, { hour12: false })}\n${time.dataset.utc}`;
    }
  }
}

// ---- Copying and command lines -----------------------------------------------------------------------------------------------

function prepare(root) {
  for (const button of all("button[data-copy][hidden], [data-select-all][hidden], [data-keys][hidden]", root)) button.hidden = false;
  localise(root);
}

const quoted = (word) => (/^[A-Za-z0-9_.\/:=@%+,#-]+$/.test(word) && !/^[#=]/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function writeCommand(form) {
  const cli = form.querySelector("[data-cli]");
  if (!cli) return;
  const words = [cli.dataset.cli];
  for (const input of all("[data-flag]", form)) {
    if (input.type === "checkbox") {
      if (input.checked) words.push(input.dataset.flag);
    } else if (input.value.trim()) {
      words.push(...[input.dataset.flag, quoted(input.value.trim())].filter(Boolean));
    }
  }
  if (form.dataset.tail) words.push(form.dataset.tail);
  const line = words.join(" ");
  cli.querySelector("code").textContent = line;
  cli.querySelector("[data-copy]").dataset.copy = line;
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form");
  if (form) writeCommand(form);
  countSelected();
});

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const label = copy.textContent;
    try {
      await navigator.clipboard.writeText(copy.dataset.copy);
      copy.textContent = body.dataset.copied;
    } catch {
      getSelection().selectAllChildren(copy.parentElement.querySelector("code"));
    }
    setTimeout(() => { copy.textContent = label; }, 1500);
  }
  if (event.target.closest("[data-keys]")) showKeys();
});

// ---- Selection ---------------------------------------------------------------------------------------------------------------

const ticks = () => all("td.tick input[type=checkbox]");

function countSelected() {
  const counter = document.querySelector("[data-selected]");
  if (counter) {
    const n = ticks().filter((tick) => tick.checked).length;
    counter.textContent = n ? ` (${n})` : "";
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) {
    for (const tick of ticks()) tick.checked = event.target.checked;
    countSelected();
  }
});

// ---- Keys --------------------------------------------------------------------------------------------------------------------

let current = null;

const rows = () => all("[data-row]").filter((row) => row.dataset.row !== "");

function mark(row) {
  for (const other of all(".at")) other.classList.remove("at");
  current = row ? row.dataset.row : null;
  if (row) {
    row.classList.add("at");
    row.scrollIntoView({ block: "nearest" });
  }
}

const marked = () => rows().find((row) => row.dataset.row === current);

function move(step) {
  const list = rows();
  if (!list.length) return;
  const at = list.findIndex((row) => row.dataset.row === current);
  mark(list[at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, at + step))]);
}

function showKeys() {
  const dialog = document.getElementById("keys");
  if (dialog && !dialog.open) dialog.showModal();
}

const KEYS = {
  "/": () => { const field = document.querySelector("[data-search]"); if (field) { field.focus(); field.select?.(); } return Boolean(field); },
  j: () => move(1),
  k: () => move(-1),
  x: () => { const tick = marked()?.querySelector("td.tick input"); if (tick) { tick.checked = !tick.checked; countSelected(); } },
  Enter: () => { const link = marked()?.querySelector("a[href]"); if (!link) return false; link.click(); return true; },
  r: () => {
    const chosen = ticks().some((tick) => tick.checked) && document.querySelector(".selection [data-key=r]");
    const target = chosen || marked()?.querySelector("[data-key=r]") || document.querySelector("[data-actions] [data-key=r], .actions [data-key=r]");
    target?.click();
  },
  "?": showKeys,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
  const target = event.target;
  if (target.matches("input, select, textarea")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (event.key === "Enter" && target.matches("a, button, summary")) return;
  const act = KEYS[event.key];
  if (act && act() !== false) event.preventDefault();
});

// ---- Live ---------------------------------------------------------------------------------------------------------------------

// What a person has done to a region is done to its fresh copy before it takes the place.
function replace(old, fresh) {
  if (old.innerHTML === fresh.innerHTML) return;
  for (const tick of all("input:checked[value]", old)) {
    const twin = all("input[type=checkbox]", fresh).find((other) => other.name === tick.name && other.value === tick.value);
    if (twin) twin.checked = true;
  }
  for (const open of all("details[open][id]", old)) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  old.replaceChildren(...fresh.childNodes);
}

// A region is left alone while somebody types, marks text or has an unnamed form open in it.
function isBusy(region) {
  const active = document.activeElement;
  if (active !== body && region.contains(active) && active.matches("input:not([type=checkbox]), select, textarea")) return true;
  const selection = getSelection();
  if (!selection.isCollapsed && region.contains(selection.anchorNode)) return true;
  return region.querySelector("details[open]:not([id])") !== null;
}

let loading = false;
let again = false;

async function refresh() {
  if (document.hidden || !document.querySelector("[data-live]")) return;
  if (loading) { again = true; return; }
  loading = true;
  try {
    const address = new URL(location.href);
    address.searchParams.delete("done");
    const response = await fetch(address, { headers: { accept: "text/html" }, redirect: "error" });
    if (!response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const focus = document.activeElement?.getAttribute?.("href");
    for (const region of all("[data-live][id]")) {
      const fresh = page.getElementById(region.id);
      if (fresh && !isBusy(region)) replace(region, fresh);
    }
    const side = document.querySelector(".side nav");
    const freshSide = page.querySelector(".side nav");
    if (side && freshSide && side.innerHTML !== freshSide.innerHTML && !side.contains(document.activeElement)) side.replaceChildren(...freshSide.childNodes);
    if (focus && document.activeElement === body) all("a[href]").find((link) => link.getAttribute("href") === focus)?.focus({ preventScroll: true });
    prepare(document);
    marked()?.classList.add("at");
    countSelected();
    tick();
  } catch {
    // The server is away; the stream comes back when it does.
  } finally {
    loading = false;
    if (again) { again = false; setTimeout(refresh, 1000); }
  }
}

let source = null;

function listen() {
  if (!body.dataset.events || !document.querySelector("[data-live]") || source) return;
  source = new EventSource(body.dataset.events);
  source.addEventListener("changed", refresh);
}

function hush() {
  source?.close();
  source = null;
}

// A page that nobody looks at, or that waits in the history, holds no connection.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) hush();
  else { listen(); refresh(); }
});
addEventListener("pagehide", hush);
addEventListener("pageshow", (event) => { if (event.persisted) { listen(); refresh(); } });

prepare(document);
for (const form of all("form:has([data-cli])")) writeCommand(form);
countSelected();
tick();
setInterval(tick, 1000);
if (!document.hidden) listen();
