// Elements without innerHTML: text only ever becomes a text node or a checked attribute.

/**
 * Builds an element. `class`, `text` and `on` are special, everything else is an attribute
 * (true: present, false or null: absent).
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** The element with this id; a missing one is a mistake of ours. @param {string} id @returns {any} */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`no element #${id}`);
  return node;
}

// Drawn for 24 x 24, stroke only.
const PATHS = {
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  contrast:
    "M12 3.5a8.5 8.5 0 1 0 0 17a8.5 8.5 0 1 0 0-17zM12 3.5v17M12 8l6-2.2M12 13h8.4M12 18l6 .2",
  copy: "M9 9h10v11H9zM5 15V4h10",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19.5 8.5l-4-4L4 16zM13 7l4 4",
  left: "M14.5 6l-6 6 6 6",
  moon: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z",
  retry: "M19.5 12a7.5 7.5 0 1 1-2.3-5.4M19.5 3.5V8H15",
  right: "M9.5 6l6 6-6 6",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  trash: "M4.5 7h15M9 7V4.5h6V7M6.5 7l1 13h9l1-13M10.2 11v5M13.8 11v5",
};

/** A small decorative drawing. @param {string} name of PATHS */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button that is only a drawing, with a name for those who can't see it. */
export function iconButton(name, label, onClick, props = {}) {
  return el(
    "button",
    {
      type: "button",
      class: "icon-button",
      "aria-label": label,
      title: label,
      on: { click: onClick },
      ...props,
    },
    icon(name),
  );
}

/**
 * Copies text. navigator.clipboard exists only over https and on localhost; the old way works
 * elsewhere too. @param {string} text @returns {Promise<boolean>} whether it worked
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const active = document.activeElement;
    const area = el("textarea", { class: "off-screen", "aria-hidden": "true", readonly: true });
    area.value = text;
    // A dialog makes what is outside of it inert, and inert text can't be selected.
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (active instanceof HTMLElement) active.focus();
    return copied;
  }
}
