"use strict";
// Asks for the page anew every few seconds, and puts in place what has changed: nothing flashes, no place is lost.
const EVERY_MS = 3000;
const room = document.getElementById("room");
const stamp = document.getElementById("stamp");
let shown = room.innerHTML;

function replaced(fresh) {
  const places = [...room.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const focused = [...room.querySelectorAll(".scroll")].indexOf(document.activeElement);
  room.replaceChildren(...fresh.childNodes);
  const tables = [...room.querySelectorAll(".scroll")];
  tables.forEach((each, at) => { each.scrollLeft = places[at] || 0; });
  if (tables[focused]) tables[focused].focus({ preventScroll: true });
}

async function look() {
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(3 * EVERY_MS) });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("room");
    if (fresh.innerHTML !== shown) {
      shown = fresh.innerHTML;
      replaced(fresh);
    }
    stamp.textContent = page.getElementById("stamp").textContent;
    stamp.classList.remove("late");
  } catch {
    stamp.textContent = stamp.dataset.late;
    stamp.classList.add("late");
  }
  setTimeout(look, EVERY_MS);
}

setTimeout(look, EVERY_MS);
