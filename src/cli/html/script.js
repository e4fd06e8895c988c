"use strict";
// Tables sort by a click on a title and show the rows that contain a text; treemaps show a tensor in
// its table. Without this script the page has the same content.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  if (rows.length < 2) continue;

  const key = (row, i) => {
    const cell = row.cells[i];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const compare = (a, b) => {
    const numbers = [typeof a, typeof b].filter((t) => t === "number").length;
    if (numbers === 2) return a - b;
    // What has no number comes after what has one.
    if (numbers === 1) return typeof a === "number" ? 1 : -1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("n");
      const was = head.getAttribute("aria-sort");
      const down = was ? was === "ascending" : isNumber;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = rows.map((row) => [key(row, i), row]);
      keyed.sort(([a], [b]) => (down ? compare(b, a) : compare(a, b)));
      const sorted = document.createDocumentFragment();
      for (const [, row] of keyed) sorted.append(row);
      body.append(sorted);
    });
  });

  const bar = document.createElement("p");
  bar.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Show rows that contain…";
  input.setAttribute("aria-label", "Show rows that contain");
  const shown = document.createElement("span");
  bar.append(input, shown);
  table.parentElement.before(bar);
  let texts;
  const filter = () => {
    texts ??= rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word));
      if (!row.hidden) n += 1;
    });
    shown.textContent = words.length ? `${n} of ${rows.length}` : "";
  };
  let wait;
  input.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(filter, 120);
  });
  table.show = (text) => {
    input.value = text;
    filter();
    bar.scrollIntoView();
  };
}

document.querySelectorAll("svg.treemap").forEach((picture, i) => {
  const table = document.getElementById(i ? "tensors-b-table" : "tensors-table");
  if (!table || !table.show) return;
  picture.classList.add("clickable");
  picture.addEventListener("click", (event) => {
    const title = event.target !== picture && event.target.querySelector("title");
    if (title) table.show(title.textContent.split("\n")[0].replace(/: [^:]*$/, ""));
  });
});
