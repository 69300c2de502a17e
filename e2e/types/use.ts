// Compiled by package.test.mjs and never run: what simurgh-resume's types allow, and what not.

import { Socket } from "phoenix";
import { type Gap, type Options, resumable } from "simurgh-resume";

const freshToken = () => "a token";
// @types/phoenix 1.6.7 knows a text only (docs/CLIENTS.md).
const authToken = freshToken as unknown as string;
const socket = new Socket("/socket", { authToken });
const options: Options = {
  id: "a-window-of-ada",
  since: sessionStorage.getItem("position"),
  partial: false,
  onGap: ({ reason, count }: Gap) => { console.log(reason === "epoch", (count ?? 0) + 1); },
};
const room = resumable(socket, "rooms:lobby", { user: "ada" }, options);
// It is the channel of phoenix's own types, and has a position.
room.join().receive("ok", (response) => console.log(response));
const position: string | null = room.position();
resumable(socket, "rooms:tea").push("msg", {});
resumable(socket, "rooms:tea", () => ({ token: position }), {}).leave();

// Without types of phoenix's.
declare const untyped: any;
resumable(untyped, "rooms:tea").join().receive("ok", () => {});

// @ts-expect-error: there is no topic
resumable(socket);
// @ts-expect-error: a position is a text
resumable(socket, "rooms:tea", {}, { since: 7 });
// @ts-expect-error: there is no such option
resumable(socket, "rooms:tea", {}, { position });
// @ts-expect-error: there is no such reason
resumable(socket, "rooms:tea", {}, { onGap: ({ reason }) => reason === "bored" });
// @ts-expect-error: a position may be null
room.position().length;
