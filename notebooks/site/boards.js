// flipbooks: controls turn the pages that lie packed in the page
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}
for (const board of document.querySelectorAll(".labkit-board")) {
  const page = board.querySelector(".labkit-page"), packed = board.querySelector(".labkit-pages");
  const controls = [...board.querySelectorAll("[data-place]")].sort((a, b) => a.dataset.place - b.dataset.place);
  const [slider, ...others] = controls;
  if (!slider || !packed) continue;
  const at = (control) => control.selectedIndex ?? Number(control.value);
  let unpacking;
  const unpack = () => unpacking ??= unpacked(packed.textContent);
  const label = (control) => {
    if (!control.dataset.labels) return;
    const text = JSON.parse(control.dataset.labels)[control.value] ?? control.value;
    control.nextElementSibling.textContent = text;
    control.setAttribute("aria-valuetext", text);
  };
  const turn = async () => {
    controls.forEach(label);
    const pages = (await unpack())[others.map(at).join()];
    if (slider.type === "range") slider.max = pages.length - 1; // and the value with it
    controls.forEach(label);
    page.innerHTML = pages[at(slider)];
  };
  for (const control of controls) {
    if (control.type === "range") control.value = control.defaultValue; // a reload keeps it, but not the page
    else control.selectedIndex = [...control.options].findIndex((each) => each.defaultSelected);
    control.oninput = turn;
    control.onfocus = unpack;
  }
  const play = board.querySelector(".labkit-play");
  if (!play) continue;
  let ticking = 0;
  const stop = () => { clearInterval(ticking); ticking = 0; play.setAttribute("aria-pressed", "false"); };
  play.onclick = () => {
    if (ticking) return stop();
    if (slider.value === slider.max) { slider.value = 0; turn(); }
    play.setAttribute("aria-pressed", "true");
    ticking = setInterval(() => { slider.stepUp(); turn(); if (slider.value === slider.max) stop(); }, play.dataset.ms);
  };
}
