// Waits with a time limit, for every test step that depends on another process.

/** Long enough for a machine that does much else; only a failure takes so long. */
export const WAIT_MS_MAX = 30_000;

/** Resolves as `promise` does, or rejects after `ms` with a message that names `what`. */
export async function within(promise, what, ms = WAIT_MS_MAX) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Resolves as soon as `holds()`. */
export async function until(holds, what, ms = WAIT_MS_MAX) {
  const end = Date.now() + ms;
  while (!holds()) {
    if (Date.now() > end) throw new Error(`waited ${ms} ms for ${what}`);
    await pause(5);
  }
}

/**
 * Resolves as soon as `check` does not throw. What a page or a server shows is read again and again
 * and not once: after `ms` it rejects with the last error of `check`, which has the last value.
 */
export async function eventually(check, ms = WAIT_MS_MAX) {
  const end = Date.now() + ms;
  while (true) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > end) throw new Error(`not within ${ms} ms: ${error.message}`);
    }
    await pause(50);
  }
}

/**
 * A mailbox for callbacks: `put` is handed to the client as a handler, `next` waits for the first
 * value (in order of arrival) that `wanted` accepts, and takes it out.
 */
export class Inbox {
  #values = [];
  #waiting = [];

  put = (value) => {
    const index = this.#waiting.findIndex(({ wanted }) => wanted(value));
    if (index < 0) this.#values.push(value);
    else this.#waiting.splice(index, 1)[0].resolve(value);
  };

  async next(what, wanted = () => true, ms = WAIT_MS_MAX) {
    const index = this.#values.findIndex(wanted);
    if (index >= 0) return this.#values.splice(index, 1)[0];
    const waiter = { wanted };
    const value = new Promise((resolve) => {
      waiter.resolve = resolve;
    });
    this.#waiting.push(waiter);
    return await within(value, what, ms);
  }

  /** Drops the values received so far. */
  clear() {
    this.#values.length = 0;
  }

  /** The values that no call has taken. */
  get rest() {
    return [...this.#values];
  }
}
