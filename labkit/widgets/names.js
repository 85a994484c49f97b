// What stock controls leave unsaid to a screen reader: the name of each slider handle and player button, and the option
// that a handle stands at. All of it is read off the page, where the eye reads it; so it needs no kernel. And it keeps a
// list's keys from JupyterLab, which takes "arrow down" for "next cell" and "d d" for "delete the cell".

const ICONS = {"fa-play": "play", "fa-pause": "pause", "fa-stop": "stop", "fa-retweet": "repeat"};

function set(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

function slider(box, words) {
  const label = box.querySelector(".widget-label")?.textContent ?? "", readout = box.querySelector(".widget-readout");
  const handles = [...box.querySelectorAll(".noUi-handle")], shown = readout?.textContent ?? "";
  const parts = handles.length === 2 && shown.split("-").length === 2 ? shown.split("-") : handles.map(() => shown);
  const names = handles.length === 2 ? [`${label}: ${words.from}`, `${label}: ${words.to}`] : [label];
  handles.forEach((handle, i) => {
    set(handle, "aria-label", names[i]);
    set(handle, "aria-valuetext", parts[i]);
  });
  if (readout) set(readout, "contenteditable", "false"); // it looks editable, and takes nothing that is typed
}

function button(made, words) {
  const icon = made.querySelector("i");
  if (!icon) return;
  set(icon, "aria-hidden", "true");
  const known = Object.keys(ICONS).find(name => icon.classList.contains(name));
  if (known && !made.textContent.trim()) {
    set(made, "aria-label", words[ICONS[known]]);
    set(made, "title", words[ICONS[known]]);
  }
}

export default {
  render({model, el}) {
    let watch;
    const look = board => {
      set(board, "data-cut", model.get("words").cut); // a line of words in place of ipywidgets' red icon at every widget
      for (const each of board.querySelectorAll(".widget-slider")) slider(each, model.get("words"));
      for (const each of board.querySelectorAll(".jupyter-button")) button(each, model.get("words"));
      for (const each of board.querySelectorAll("select")) set(each, "data-lm-suppress-shortcuts", "true");
    };
    const shown = new ResizeObserver(() => { // fires when the board has come into the page
      const board = el.closest(".labkit-board");
      if (watch || !board) return;
      watch = new MutationObserver(() => look(board));
      watch.observe(board, {subtree: true, childList: true, characterData: true, attributes: true,
        attributeFilter: ["aria-valuetext", "class", "contenteditable"]});
      look(board);
    });
    shown.observe(el);
    return () => { shown.disconnect(); watch?.disconnect(); };
  },
};
