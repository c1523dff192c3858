package dev.magnetar.e2e;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * The stock Java client under a workload: {@code Client produce|consume OPTIONS.json}.
 *
 * <p>Writes what it was told and what it got as JSON lines; the shapes are in {@code e2e/history.py}.
 */
public final class Client {
    /** A death of the server must be ridden out by reconnecting, never by an expired send. */
    private static final int SEND_TIMEOUT_S = 300;

    private final JsonObject options;
    private final BufferedWriter history;
    private long flushedMs;

    private Client(JsonObject options) throws IOException {
        this.options = options;
        this.history = Files.newBufferedWriter(
                Path.of(text("history")), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    public static void main(String[] arguments) throws Exception {
        JsonObject options = new Gson().fromJson(Files.readString(Path.of(arguments[1])), JsonObject.class);
        Client program = new Client(options);
        try (PulsarClient client = PulsarClient.builder()
                .serviceUrl(program.text("service_url"))
                .startingBackoffInterval(100, TimeUnit.MILLISECONDS)
                .maxBackoffInterval(500, TimeUnit.MILLISECONDS)
                .operationTimeout(120, TimeUnit.SECONDS)
                .build()) {
            if (arguments[0].equals("produce")) {
                program.produce(client);
            } else {
                program.consume(client);
            }
        }
        program.history.close();
    }

    private String text(String name) {
        return options.get(name).getAsString();
    }

    private int number(String name) {
        return options.get(name).getAsInt();
    }

    private boolean flag(String name) {
        return options.get(name).getAsBoolean();
    }

    private synchronized void write(String event, JsonObject fields) {
        long now = System.currentTimeMillis();
        fields.addProperty("event", event);
        fields.addProperty("time_ms", now);
        try {
            history.write(fields.toString().replace("\": ", "\":"));
            history.newLine();
            if (event.equals("note") || now - flushedMs > 100) {
                history.flush();
                flushedMs = now;
            }
        } catch (IOException failure) {
            throw new java.io.UncheckedIOException(failure);
        }
    }

    private void note(String text) {
        JsonObject fields = new JsonObject();
        fields.addProperty("text", text);
        write("note", fields);
    }

    private static String position(MessageId messageId) {
        MessageIdAdv id = (MessageIdAdv) messageId;
        return id.getLedgerId() + ":" + id.getEntryId() + ":" + id.getPartitionIndex() + ":" + id.getBatchIndex();
    }

    private static String keyOf(String line) {
        String word = line.strip().split("\\s+")[0];
        return word.substring(0, Math.min(word.length(), 24));
    }

    private Producer<byte[]> openProducer(PulsarClient client, String name) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer()
                .topic(text("topic"))
                .producerName(name)
                .enableBatching(flag("batched"))
                .compressionType(CompressionType.valueOf(text("compression")))
                .blockIfQueueFull(true)
                .maxPendingMessages(1000)
                .sendTimeout(SEND_TIMEOUT_S, TimeUnit.SECONDS);
        if (flag("batched") && text("subscription_type").equals("Key_Shared")) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        return builder.create();
    }

    /** Producer i sends the numbers i, i + n, i + 2 n, … */
    private void produce(PulsarClient client) throws Exception {
        List<String> lines = Files.readAllLines(Path.of(text("corpus")), StandardCharsets.US_ASCII);
        Path stop = Path.of(text("stop_file"));
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (int index = 0; index < number("producers"); index++) {
            producers.add(openProducer(client, "producer-" + index));
        }
        note("ready");
        long startedNs = System.nanoTime();
        int sent = 0;
        for (; sent < number("count") && !(sent % 64 == 0 && Files.exists(stop)); sent++) {
            send(producers.get(sent % producers.size()), lines.get(sent % lines.size()), sent);
            if (number("rate") > 0) {
                long dueNs = startedNs + sent * 1_000_000_000L / number("rate");
                TimeUnit.NANOSECONDS.sleep(dueNs - System.nanoTime());
            }
        }
        for (Producer<byte[]> producer : producers) {
            producer.flush();
            producer.close();
        }
        note("sent " + sent);
    }

    private void send(Producer<byte[]> producer, String line, int sequence) {
        var message = producer.newMessage()
                .value(line.getBytes(StandardCharsets.US_ASCII))
                .property("number", Integer.toString(sequence))
                .property("producer", producer.getProducerName());
        if (flag("keyed")) {
            message.key(keyOf(line));
        }
        message.sendAsync().whenComplete((id, failure) -> {
            JsonObject fields = new JsonObject();
            fields.addProperty("producer", producer.getProducerName());
            fields.addProperty("number", sequence);
            if (failure == null) {
                fields.addProperty("id", position(id));
                write("acked", fields);
            } else {
                fields.addProperty("error", failure.toString());
                write("failed", fields);
            }
        });
    }

    /** Which numbers have arrived over all consumers, and when the last one did. */
    private final class Progress {
        private final Set<Integer> seen = new HashSet<>();
        private int count = number("count");
        private long lastNs = System.nanoTime();
        private boolean timedOut;

        synchronized void arrived(int consumer, Message<byte[]> message) throws Exception {
            seen.add(Integer.parseInt(message.getProperty("number")));
            lastNs = System.nanoTime();
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(message.getData());
            JsonObject fields = new JsonObject();
            fields.addProperty("consumer", consumer);
            fields.addProperty("producer", message.getProperty("producer"));
            fields.addProperty("number", Integer.parseInt(message.getProperty("number")));
            fields.addProperty("id", position(message.getMessageId()));
            fields.addProperty("key", message.hasKey() ? message.getKey() : "");
            fields.addProperty("digest", HexFormat.of().formatHex(digest).substring(0, 16));
            fields.addProperty("redelivery", message.getRedeliveryCount());
            write("received", fields);
        }

        /** Everything is here and nothing has come for a while, or nothing has come for far too long. */
        synchronized boolean over() throws IOException {
            double quietS = (System.nanoTime() - lastNs) / 1e9;
            if (quietS > options.get("idle_timeout_s").getAsDouble()) {
                timedOut = true;
                return true;
            }
            if (quietS * 1000 < number("linger_ms")) {
                return false;
            }
            Path stop = Path.of(text("stop_file"));
            if (Files.exists(stop)) {
                String written = Files.readString(stop).strip();
                count = written.isEmpty() ? count : Integer.parseInt(written);
            }
            return seen.size() >= count;
        }
    }

    private void consume(PulsarClient client) throws Exception {
        Progress progress = new Progress();
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < number("consumers"); index++) {
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(text("topic"))
                    .subscriptionName(text("subscription"))
                    .consumerName("consumer-" + index)
                    .subscriptionType(SubscriptionType.valueOf(text("subscription_type")))
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .isAckReceiptEnabled(true)
                    .subscribe();
            int which = index;
            threads.add(new Thread(() -> receiveAll(consumer, which, progress)));
        }
        note("ready");
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        note(progress.timedOut ? "idle for too long" : "done");
    }

    private void receiveAll(Consumer<byte[]> consumer, int index, Progress progress) {
        try {
            while (!progress.over()) {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message != null) {
                    progress.arrived(index, message);
                    acknowledge(consumer, message.getMessageId());
                }
            }
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    /** Notes a receipt when the broker confirmed it; one that failed is redelivered. */
    private void acknowledge(Consumer<byte[]> consumer, MessageId messageId) {
        consumer.acknowledgeAsync(messageId).whenComplete((nothing, failure) -> {
            if (failure == null) {
                JsonObject fields = new JsonObject();
                fields.addProperty("id", position(messageId));
                write("receipt", fields);
            }
        });
    }
}
