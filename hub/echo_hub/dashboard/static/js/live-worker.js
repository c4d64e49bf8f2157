/**
 * One stream for all tabs of this browser: it allows six connections to a host, and a tab that held
 * one each would leave the seventh with none.
 */

import { Stream } from "./stream.js";

const ports = new Map(); // port -> when it was last heard of
const FORGET_MS = 45_000;
let stream = null;

self.onconnect = (connected) => {
  const port = connected.ports[0];
  ports.set(port, Date.now());
  port.onmessage = ({ data }) => {
    ports.set(port, Date.now());
    if (data.open) {
      if (!stream) stream = new Stream(data.open, tellAll);
      else port.postMessage(stream.state);
    }
    if (data.retry) stream?.retry();
    if (data.bye) leave(port);
  };
  port.start();
};

function tellAll(message) {
  const now = Date.now();
  for (const [port, heard] of ports) {
    if (now - heard > FORGET_MS)
      leave(port); // a tab that was killed says no goodbye
    else port.postMessage(message);
  }
}

function leave(port) {
  ports.delete(port);
  if (!ports.size) {
    stream?.close();
    stream = null;
  }
}
