// A list of the site's versions in the menu bar of each page. The versions are folders beside each
// other; versions.json above them names them.

(async () => {
  // mdBook defines path_to_root, the way to this version's folder.
  const folder = new URL(path_to_root || "./", location.href);
  const response = await fetch(new URL("../versions.json", folder));
  if (!response.ok) return;
  const versions = await response.json();
  const list = document.createElement("select");
  list.className = "version-list";
  list.setAttribute("aria-label", "Version");
  const current = folder.pathname.split("/").at(-2);
  for (const version of versions) {
    list.add(new Option(version, version, false, version === current));
  }
  list.addEventListener("change", async () => {
    const other = new URL(`../${list.value}/`, folder);
    const same = new URL(location.pathname.slice(folder.pathname.length), other);
    const { ok } = await fetch(same, { method: "HEAD" });
    location.assign(ok ? same : other);
  });
  document.querySelector(".right-buttons").prepend(list);
})();
