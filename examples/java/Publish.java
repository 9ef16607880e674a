import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Publishes one task safely and waits for its result. With com.rabbitmq:amqp-client on the class path: java Publish order-1001.
 *
 * <p>Exit code 0: it succeeded, its reply is on stdout. 1: it is dead, discarded or cancelled. 2: nobody took it. 3: nobody knows yet.
 */
public final class Publish {
  private static final String TYPE = "order.ship";
  private static final int TRIES = 5;
  private static final long CONFIRM_MS = 10_000;
  private static final long WAIT_S = 60;

  /** Whether a queue took it. Returns when the broker has confirmed it; replies go to {@code replies}. */
  private static boolean submit(ConnectionFactory factory, String id, BlockingQueue<String> replies)
      throws IOException, TimeoutException, InterruptedException {
    Connection connection = factory.newConnection("publish");
    Channel channel = connection.createChannel();
    channel.confirmSelect();
    AtomicBoolean returned = new AtomicBoolean();
    channel.addReturnListener(back -> returned.set(true));
    String queue = channel.queueDeclare().getQueue();
    channel.basicConsume(
        queue,
        true,
        (tag, delivery) -> {
          if (id.equals(delivery.getProperties().getCorrelationId())) {
            replies.offer(new String(delivery.getBody(), StandardCharsets.UTF_8));
          }
        },
        tag -> {});
    String body =
        String.format("{\"id\":\"%s\",\"type\":\"%s\",\"payload\":{\"order\":\"%s\"},\"reply_to\":\"%s\"}", id, TYPE, id, queue);
    AMQP.BasicProperties properties =
        new AMQP.BasicProperties.Builder().deliveryMode(2).contentType("application/json").messageId(id).build();
    boolean mandatory = true;
    channel.basicPublish("redeliver.submit", TYPE, mandatory, properties, body.getBytes(StandardCharsets.UTF_8));
    // A returned message is confirmed too, and its return comes before.
    channel.waitForConfirmsOrDie(CONFIRM_MS);
    return !returned.get();
  }

  public static void main(String[] args) throws Exception {
    String id = args.length > 0 ? args[0] : "order-1001";
    String url = System.getenv().getOrDefault("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f");
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(url);
    BlockingQueue<String> replies = new ArrayBlockingQueue<>(16);
    for (int attempt = 0; ; attempt++) {
      try {
        if (!submit(factory, id, replies)) {
          System.err.println("no queue takes " + TYPE + ": is redeliver set up in this virtual host?");
          System.exit(2);
        }
        break;
      } catch (IOException | TimeoutException error) {
        // Not confirmed is not the same as not taken. The same id again makes it one task either way.
        System.err.println("not confirmed (" + error + "), once more");
        if (attempt == TRIES - 1) {
          System.exit(3);
        }
        Thread.sleep(1000L << attempt);
      }
    }
    String reply = replies.poll(WAIT_S, TimeUnit.SECONDS);
    if (reply == null) {
      System.err.println(id + " is accepted and has not ended; ask again with the same id");
      System.exit(3);
    }
    System.out.println(reply);
    // A program of yours has a JSON library for this.
    System.exit(reply.contains("\"status\":\"succeeded\"") ? 0 : 1);
  }
}
