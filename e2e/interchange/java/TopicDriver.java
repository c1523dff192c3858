import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Apache's Java client at the end of a pipe: transactions, and reading with and without compaction.
 *
 * <p>Called with the service URL. A line is an operation and its words; the answer is `ok` and a number, and as many
 * lines after it, or `error` and why.
 */
public final class TopicDriver {
    private static final int TRANSACTION_MINUTES = 30;
    private static final int LAST_SECONDS = 5;
    /** Behind each value, so that a few messages are megabytes. */
    private static final String FILLING = ".".repeat(40_000);

    private static final int BATCH_BYTES = 4 << 20;

    private final PulsarClient client;
    private final Map<String, Transaction> transactions = new HashMap<>();

    private TopicDriver(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever else is printed is no answer.
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (PulsarClient client =
                PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build()) {
            TopicDriver driver = new TopicDriver(client);
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(driver.answer(Arrays.asList(line.split(" "))));
                answers.flush();
            }
        }
    }

    private String answer(List<String> words) {
        try {
            List<String> rows = run(words);
            rows.add(0, "ok " + rows.size());
            return String.join("\n", rows);
        } catch (Exception error) {
            return "error " + error.toString().replace("\n", " ");
        }
    }

    private List<String> run(List<String> words) throws Exception {
        switch (words.get(0)) {
            case "begin":
                transactions.put(
                        words.get(1),
                        client.newTransaction()
                                .withTransactionTimeout(TRANSACTION_MINUTES, TimeUnit.MINUTES)
                                .build()
                                .get());
                return new ArrayList<>();
            case "commit":
                transactions.remove(words.get(1)).commit().get();
                return new ArrayList<>();
            case "abort":
                transactions.remove(words.get(1)).abort().get();
                return new ArrayList<>();
            case "send":
                return send(words.get(1), words.get(2), words.get(3).equals("batched"), words.subList(4, words.size()));
            case "read":
                return read(words.get(1), words.get(2).equals("compacted"));
            default:
                throw new IllegalArgumentException(words.get(0));
        }
    }

    /** Messages `key=value`: without a key where none stands, and without a value. Transaction `-` is none. */
    private List<String> send(String topic, String name, boolean batched, List<String> messages) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = producerOf(topic, batched ? messages.size() : 0)) {
            for (String each : messages) {
                TypedMessageBuilder<byte[]> message =
                        name.equals("-") ? producer.newMessage() : producer.newMessage(transactions.get(name));
                int sign = each.indexOf('=');
                if (sign > 0) {
                    message.key(each.substring(0, sign));
                }
                String value = each.substring(sign + 1);
                message.value(value.isEmpty() ? null : (value + FILLING).getBytes(StandardCharsets.UTF_8));
                sent.add(message.sendAsync());
            }
            for (CompletableFuture<MessageId> each : sent) {
                each.get();
            }
        }
        return new ArrayList<>();
    }

    private Producer<byte[]> producerOf(String topic, int batch) throws Exception {
        // A batch goes when it is full: in a transaction, messages get into it only after the broker was told of them.
        return client.newProducer(Schema.BYTES)
                .topic(topic)
                .enableBatching(batch > 1)
                .batchingMaxMessages(Math.max(batch, 2))
                .batchingMaxBytes(BATCH_BYTES)
                .batchingMaxPublishDelay(1, TimeUnit.HOURS)
                .sendTimeout(0, TimeUnit.SECONDS)
                .create();
    }

    /** All that can be read now, from the beginning: `ledger:entry[:index] key value`, `-` for what there is not. */
    private List<String> read(String topic, boolean compacted) throws Exception {
        List<String> rows = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader(Schema.BYTES)
                .topic(topic)
                .startMessageId(MessageId.earliest)
                .readCompacted(compacted)
                .create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(LAST_SECONDS, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                MessageIdAdv id = (MessageIdAdv) message.getMessageId();
                String place = id.getLedgerId() + ":" + id.getEntryId();
                if (id.getBatchIndex() >= 0) {
                    place += ":" + id.getBatchIndex();
                }
                byte[] value = message.getData();
                boolean nothing = value == null || value.length == 0;
                rows.add(String.join(
                        " ",
                        place,
                        message.hasKey() ? message.getKey() : "-",
                        nothing ? "-" : new String(value, StandardCharsets.UTF_8).replace(FILLING, "")));
            }
        }
        return rows;
    }
}
