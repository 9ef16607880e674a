// Publishes one task safely and waits for its result. `npm install amqplib`; then `node publish.js order-1001`.
//
// Exit code 0: it succeeded, its result is on stdout. 1: it is dead, discarded or cancelled. 2: nobody took it. 3: nobody knows yet.

const amqp = require("amqplib");

const URL = process.env.AMQP_URL || "amqp://guest:guest@localhost:5672/%2f";
const TYPE = "order.ship";
const TRIES = 5;
const CONFIRM_MS = 10_000;
const WAIT_MS = 60_000;

const within = (ms, what, promise) => {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`${what}: nothing within ${ms} ms`)), ms); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

// Resolves when the broker has the task: `false` if it came back because no queue takes it.
async function publish(channel, task) {
  let returned = false;
  const back = (message) => { returned ||= message.properties.messageId === task.id; };
  channel.on("return", back);
  const confirmed = new Promise((resolve, reject) => {
    channel.publish("redeliver.submit", TYPE, Buffer.from(JSON.stringify(task)), {
      persistent: true, mandatory: true, contentType: "application/json", messageId: task.id,
    }, (error) => (error ? reject(error) : resolve()));
  });
  // A returned message is confirmed too, and its return comes before.
  await within(CONFIRM_MS, "confirm", confirmed);
  channel.off("return", back);
  return !returned;
}

// `told(reply)` is called when the task has ended.
async function submit(id, payload, told) {
  for (let attempt = 0; attempt < TRIES; attempt++) {
    try {
      const connection = await within(CONFIRM_MS, "connect", amqp.connect(URL));
      // Errors are also events; without a listener they would end the process.
      connection.on("error", (error) => console.error(error.message));
      const channel = await connection.createConfirmChannel();
      const { queue } = await channel.assertQueue("", { exclusive: true });
      await channel.consume(queue, (message) => {
        if (message && message.properties.correlationId === id) told(JSON.parse(message.content));
      }, { noAck: true });
      return await publish(channel, { id, type: TYPE, payload, reply_to: queue });
    } catch (error) {
      // Not confirmed is not the same as not taken. The same id again makes it one task either way.
      console.error(`not confirmed (${error.message}), once more`);
      await new Promise((resolve) => setTimeout(resolve, 1000 * 2 ** attempt));
    }
  }
  process.exit(3);
}

(async () => {
  const id = process.argv[2] || "order-1001";
  let told;
  const ended = new Promise((resolve) => { told = resolve; });
  if (!(await submit(id, { order: id }, told))) {
    console.error(`no queue takes ${TYPE}: is redeliver set up in this virtual host?`);
    process.exit(2);
  }
  try {
    const reply = await within(WAIT_MS, id, ended);
    console.log(JSON.stringify(reply.result));
    process.exit(reply.status === "succeeded" ? 0 : 1);
  } catch (error) {
    console.error(`${error.message}; it is accepted, ask again with the same id`);
    process.exit(3);
  }
})();
