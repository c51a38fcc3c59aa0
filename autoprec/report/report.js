// Draws the figures in the reader's colours, and again when the scheme or the width class changes.
(() => {
  "use strict";
  const source = document.getElementById("figures").textContent;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const touch = matchMedia("(pointer: coarse)");
  // The buttons are named one by one: left alone, Plotly adds one that sends the chart to its servers.
  const config = {displaylogo: false, responsive: true, showTips: false, scrollZoom: false,
                  showSendToCloud: false, plotlyServerURL: ""};
  const zoomButtons = ["zoom2d", "pan2d", "resetScale2d"];
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  const merge = (target, changes) => {
    for (const [key, value] of Object.entries(changes)) {
      if (isObject(value) && isObject(target[key])) merge(target[key], value);
      else target[key] = value;
    }
  };

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const figures = JSON.parse(source, (key, value) =>
      /color$/.test(key) && /^var\(--[a-z]+\)$/.test(value)
        ? style.getPropertyValue(value.slice(4, -1)).trim() : value);
    for (const [name, figure] of Object.entries(figures)) {
      const {data, layout} = figure;
      if (narrow.matches && layout.meta) merge(layout, layout.meta.narrow);
      const buttons = layout.dragmode === false ? [["toImage"]] : [["toImage"], zoomButtons];
      // A finger on a figure scrolls the page; it does not draw a zoom box.
      if (touch.matches) layout.dragmode = false;
      Plotly.react(`figure-${name}`, data, layout,
                   {...config, modeBarButtons: buttons, displayModeBar: touch.matches ? false : "hover"});
    }
  };

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
