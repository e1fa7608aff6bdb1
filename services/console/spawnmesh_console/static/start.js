// Files that are dropped onto the form, and code that follows what is typed. The form works
// without it.

const CODE_MS = 250;
const MAX_TASK = 3000, MAX_NAMES = 100; // More is not shown in the code.

const form = document.getElementById("spawn");
const blocks = [...document.querySelectorAll("pre[data-language]")];

/** Show the call in each language. The server writes it: the rules of quoting are there. */
async function renewCode() {
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (typeof value === "string" && name !== "request_id") fields.append(name, value.slice(0, MAX_TASK));
  }
  for (const file of [...form.elements.files.files].slice(0, MAX_NAMES)) fields.append("file", file.name);
  const response = await fetch("/start/code", { method: "POST", body: fields });
  if (!response.ok) return;
  const code = await response.json();
  for (const block of blocks) block.textContent = code[block.dataset.language] ?? "";
}

let timer = 0;
function renewCodeSoon() {
  clearTimeout(timer);
  timer = setTimeout(() => renewCode().catch(() => {}), CODE_MS); // The next input tries again.
}

function sizeOf(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return unit === 0 || bytes >= 100 ? `${bytes.toFixed(0)} ${units[unit]}` : `${bytes.toFixed(1)} ${units[unit]}`;
}

/** Let these files be the chosen ones. */
function choose(files) {
  const chosen = new DataTransfer();
  for (const file of files) chosen.items.add(file);
  form.elements.files.files = chosen.files;
  showFiles();
  renewCodeSoon();
}

/** List the chosen files, each with a button that takes it away. */
function showFiles() {
  const files = [...form.elements.files.files];
  const list = form.querySelector(".chosen");
  list.replaceChildren(
    ...files.map((file) => {
      const item = document.createElement("li");
      const size = document.createElement("span");
      size.className = "hint";
      size.textContent = sizeOf(file.size);
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${file.name}`);
      remove.addEventListener("click", () => {
        choose([...form.elements.files.files].filter((one) => one !== file));
        form.elements.files.focus();
      });
      item.append(file.name, size, remove);
      return item;
    }),
  );
  list.hidden = files.length === 0;
  const total = files.reduce((sum, file) => sum + file.size, 0);
  form.querySelector(".too-large").hidden = total <= Number(form.dataset.maxBytes);
}

function acceptDrops() {
  form.querySelector(".drop").hidden = false;
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  for (const kind of ["dragenter", "dragover"]) {
    form.addEventListener(kind, (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      form.classList.add("dropping");
    });
  }
  form.addEventListener("dragleave", (event) => {
    if (!form.contains(event.relatedTarget)) form.classList.remove("dropping");
  });
  form.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    form.classList.remove("dropping");
    const isFile = (item) => item.kind === "file" && !item.webkitGetAsEntry?.()?.isDirectory;
    const dropped = [...event.dataTransfer.items].filter(isFile).map((item) => item.getAsFile());
    choose([...form.elements.files.files, ...dropped.filter((file) => file !== null)]);
  });
}

function sendOnce() {
  const button = form.querySelector("button.primary");
  const status = form.querySelector(".sending");
  const show = (isSending) => {
    button.disabled = isSending;
    status.textContent = isSending ? "Sending …" : "";
  };
  form.addEventListener("submit", (event) => {
    const isTooLarge = !form.querySelector(".too-large").hidden;
    if (isTooLarge) event.preventDefault();
    else show(true);
  });
  window.addEventListener("pageshow", () => show(false)); // The browser can come back to this page.
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !button.disabled) form.requestSubmit(button);
  });
}

function addCopyButton() {
  if (!navigator.clipboard) return;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.textContent = "Copy";
  copy.addEventListener("click", async () => {
    const shown = blocks.find((block) => block.offsetParent !== null);
    await navigator.clipboard.writeText(shown.textContent);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  });
  document.querySelector(".languages").append(copy);
}

addCopyButton();
if (form) {
  acceptDrops();
  sendOnce();
  form.addEventListener("input", renewCodeSoon);
  form.elements.files.addEventListener("change", showFiles);
  showFiles();
}
