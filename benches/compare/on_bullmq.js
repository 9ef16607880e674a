// The comparison's work on BullMQ: `worker`, or `publish NAME N`.
//
// BullMQ holds a lock on each job it runs and gives those of a dead worker back after a while; what waits is a sorted set in Redis.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { Queue, Worker } = require("bullmq");

const connection = { host: "127.0.0.1", port: Number(process.env.COMPARE_REDIS_PORT), maxRetriesPerRequest: null };
const delayMs = Number(process.env.COMPARE_DELAY_S) * 1000;

// As marks.py: u32 task, u32 attempt, f64 seconds of the machine's monotonic clock.
let marks;
function mark(task, attempt) {
  marks ??= fs.openSync(path.join(process.env.COMPARE_MARKS, String(process.pid)), "a");
  const record = Buffer.allocUnsafe(16);
  record.writeUInt32LE(task, 0);
  record.writeUInt32LE(attempt, 4);
  record.writeDoubleLE(Number(process.hrtime.bigint()) / 1e9, 8);
  fs.writeSync(marks, record);
}

async function publish(name, count) {
  const queue = new Queue("compare", { connection });
  const options = { attempts: 2, backoff: { type: "fixed", delay: delayMs }, removeOnComplete: true };
  for (let first = 0; first < count; first += 1000) {
    const jobs = [];
    for (let n = first; n < Math.min(first + 1000, count); n++) {
      jobs.push({ name, data: { payload: String(n).padStart(8, "0").padEnd(100, "x") }, opts: options });
    }
    await queue.addBulk(jobs);
  }
  await queue.close();
}

function work() {
  const worker = new Worker(
    "compare",
    async (job) => {
      const attempt = job.attemptsMade + 1;
      mark(Number(job.data.payload.slice(0, 8)), attempt);
      if (job.name === "fails_once" && attempt === 1) throw new Error("as it was told to");
    },
    { connection, concurrency: Number(process.env.COMPARE_CONCURRENCY) },
  );
  worker.on("error", (error) => console.error(error));
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

const [verb, name, count] = process.argv.slice(2);
if (verb === "publish") {
  publish(name, Number(count)).catch((error) => {
    console.error(error);
    process.exitCode = 1;
  });
} else {
  work();
}
