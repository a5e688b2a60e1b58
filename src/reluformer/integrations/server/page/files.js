// Text in from a file, text out to the clipboard or a file.

const MOST_BYTES = 4 * 1024 * 1024;

/** The text of a file the reader chose; an Error with a hint if it is none. */
export async function textOf(file) {
  if (file.size > MOST_BYTES) {
    const hint = "The page takes up to 4 MB. `reluformer translate` takes files of any size.";
    throw Object.assign(new Error(`${file.name} is too large.`), { hint });
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    const hint = "Save the document as plain text in UTF-8 and open that.";
    throw Object.assign(new Error(`${file.name} is not a text file.`), { hint });
  }
}

/** letter.txt -> letter.de.txt; where several models translate, letter.de.reluformer.txt. */
export function translatedName(original, language, model = null) {
  const [, stem, suffix] = /^(.*?)(\.[^.]+)?$/s.exec(original || "translation.txt");
  return [stem, language, model].filter(Boolean).join(".") + (suffix ?? ".txt");
}

export function saveText(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 0);
}

/** Copy; without the clipboard's permission (a page that is neither local nor encrypted) by way of a selection. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Files dropped anywhere: `shown` is visible while one is dragged over the page. */
export function acceptDrops(shown, take) {
  const hasFile = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0;
  const show = (change) => {
    depth = Math.max(0, depth + change);
    shown.hidden = depth === 0;
  };
  addEventListener("dragenter", (event) => hasFile(event) && show(1));
  addEventListener("dragleave", (event) => hasFile(event) && show(-1));
  addEventListener("dragover", (event) => hasFile(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    show(-depth);
    take(event.dataTransfer.files[0]);
  });
}
