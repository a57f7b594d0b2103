// Live updates and keys. Pages work without it. The server adds the tooltips of reports (observe.page).
"use strict";
const { live, root } = document.body.dataset;
const pulse = document.getElementById("pulse");
let busy = false, again = false;

async function refresh() {
  if (busy) { again = true; return; }
  const typing = document.activeElement && document.activeElement.closest("#live form");
  if (typing || document.querySelector("#live form input:checked[type=checkbox]")) return;
  busy = true;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    const open = [...document.querySelectorAll("#live details")].map(each => each.open);
    document.getElementById("live").replaceChildren(...fresh.childNodes);
    document.querySelectorAll("#live details").forEach((each, i) => { each.open = open[i] || false; });
    pulse.textContent = "updated " + new Date().toLocaleTimeString();
  } catch (error) { pulse.textContent = "the server does not answer"; }
  setTimeout(() => { busy = false; if (again) { again = false; refresh(); } }, 2000);
}

if (live) {
  const events = new EventSource(root + "events?run=" + encodeURIComponent(live));
  events.onmessage = refresh;
  events.onopen = () => { pulse.textContent = "live"; };
  events.onerror = () => { pulse.textContent = "not connected"; };
}

// --- keys: j and k choose a row, Enter opens it, / goes to the filters, h home, ? tells ----------
let chosen = -1;
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const rows = [...document.querySelectorAll("#live tr")].filter(row => row.querySelector("td a"));
  const move = { j: 1, k: -1 }[event.key];
  if (move && rows.length) {
    if (rows[chosen]) rows[chosen].classList.remove("chosen");
    chosen = Math.max(0, Math.min(rows.length - 1, chosen + move));
    rows[chosen].classList.add("chosen");
    rows[chosen].scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && rows[chosen]) rows[chosen].querySelector("a").click();
  else if (event.key === "/") { const first = document.querySelector("form.filters select"); if (first) first.focus(); }
  else if (event.key === "h") location.href = root;
  else if (event.key === "?") pulse.textContent = "j k: row, Enter: open, /: filters, h: all runs";
  else return;
  event.preventDefault();
});
