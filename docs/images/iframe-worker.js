// Browsers start no workers on pages that are opened as files, so run the search in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      this.ready = new Promise((loaded) => (script.onload = loaded));
      script.src = new URL(url, location);
      frame.contentDocument.body.appendChild(script);
    }
    async postMessage(data) {
      await this.ready;
      this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
