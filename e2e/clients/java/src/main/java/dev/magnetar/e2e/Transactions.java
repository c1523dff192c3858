package dev.magnetar.e2e;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions of the stock Java client: {@code Transactions work|flood OPTIONS.json}.
 *
 * <p>{@code work}: each takes one input message and publishes its number to every output topic, until a file says to
 * stop. {@code flood}: opens transactions until one is refused. What is written is told in {@code
 * e2e/transactions/checks.py}.
 */
public final class Transactions {
    private static final int CALL_SECONDS_MAX = 90;
    private static final int OPERATION_SECONDS_MAX = 20;

    private final JsonObject options;
    private final BufferedWriter history;
    private final AtomicInteger numbers = new AtomicInteger();

    private Transactions(JsonObject options) throws IOException {
        this.options = options;
        this.history = Files.newBufferedWriter(
                Path.of(options.get("history").getAsString()), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    public static void main(String[] arguments) throws Exception {
        JsonObject options = new Gson().fromJson(Files.readString(Path.of(arguments[1])), JsonObject.class);
        Transactions program = new Transactions(options);
        try (PulsarClient client = PulsarClient.builder()
                .serviceUrl(options.get("service_url").getAsString())
                .enableTransaction(true)
                .startingBackoffInterval(100, TimeUnit.MILLISECONDS)
                .maxBackoffInterval(500, TimeUnit.MILLISECONDS)
                .operationTimeout(OPERATION_SECONDS_MAX, TimeUnit.SECONDS)
                .build()) {
            if (arguments[0].equals("work")) {
                program.work(client);
            } else {
                program.flood(client);
            }
        }
        program.history.close();
    }

    private synchronized void write(String event, JsonObject fields) {
        fields.addProperty("event", event);
        fields.addProperty("time_ms", System.currentTimeMillis());
        try {
            history.write(fields.toString());
            history.newLine();
            history.flush();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private boolean told(String file) {
        return Files.exists(Path.of(options.get(file).getAsString()));
    }

    private Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction()
                .withTransactionTimeout(options.get("timeout_ms").getAsInt(), TimeUnit.MILLISECONDS)
                .build()
                .get(CALL_SECONDS_MAX, TimeUnit.SECONDS);
    }

    private void work(PulsarClient client) throws Exception {
        List<Thread> workers = new ArrayList<>();
        for (int index = 0; index < options.get("workers").getAsInt(); index++) {
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(options.get("input").getAsString())
                    .subscriptionName(options.get("subscription").getAsString())
                    .subscriptionType(SubscriptionType.Shared)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .receiverQueueSize(10)
                    .negativeAckRedeliveryDelay(1, TimeUnit.SECONDS)
                    .subscribe();
            List<Producer<byte[]>> producers = new ArrayList<>();
            for (JsonElement topic : options.getAsJsonArray("outputs")) {
                producers.add(client.newProducer()
                        .topic(topic.getAsString())
                        .enableBatching(false)
                        .sendTimeout(0, TimeUnit.SECONDS)
                        .create());
            }
            Random random = new Random(options.get("seed").getAsInt() + index);
            workers.add(new Thread(() -> workOn(client, consumer, producers, random)));
        }
        JsonObject ready = new JsonObject();
        ready.addProperty("text", "ready");
        write("note", ready);
        workers.forEach(Thread::start);
        for (Thread worker : workers) {
            worker.join();
        }
    }

    private void workOn(
            PulsarClient client, Consumer<byte[]> consumer, List<Producer<byte[]>> producers, Random random) {
        while (!told("stop_file")) {
            try {
                Message<byte[]> input = consumer.receive(500, TimeUnit.MILLISECONDS);
                if (input != null) {
                    oneTransaction(client, consumer, producers, input, random);
                }
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        }
    }

    /** What the transaction is to come to: most are committed, and all once the file says to drain. */
    private String plan(Random random) {
        double drawn = random.nextDouble();
        if (told("drain_file")) {
            return "commit";
        }
        return drawn < 0.7 ? "commit" : drawn < 0.93 ? "abort" : "leave";
    }

    private void oneTransaction(
            PulsarClient client,
            Consumer<byte[]> consumer,
            List<Producer<byte[]>> producers,
            Message<byte[]> input,
            Random random)
            throws Exception {
        int number = numbers.getAndIncrement();
        JsonObject ended = new JsonObject();
        ended.addProperty("number", number);
        ended.addProperty("input", Integer.parseInt(new String(input.getData(), StandardCharsets.US_ASCII)));
        write("began", ended.deepCopy());
        String plan = plan(random);
        String asked = "nothing";
        Transaction transaction = null;
        try {
            transaction = begin(client);
            ended.addProperty("id", transaction.getTxnID().toString());
            List<CompletableFuture<?>> parts = new ArrayList<>();
            for (Producer<byte[]> producer : producers) {
                parts.add(producer.newMessage(transaction)
                        .key(Integer.toString(number))
                        .value(Integer.toString(number).getBytes(StandardCharsets.US_ASCII))
                        .sendAsync());
            }
            parts.add(consumer.acknowledgeAsync(input.getMessageId(), transaction));
            CompletableFuture.allOf(parts.toArray(CompletableFuture[]::new)).get(CALL_SECONDS_MAX, TimeUnit.SECONDS);
            if (!plan.equals("leave")) {
                asked = plan;
                end(transaction, plan);
            }
        } catch (ExecutionException | TimeoutException failure) {
            ended.addProperty("error", text(failure));
            if (asked.equals("nothing")) {
                consumer.negativeAcknowledge(input);
            }
            if (asked.equals("nothing") && transaction != null) {
                asked = "abort";
                transaction.abort().exceptionally(ignored -> null);
            }
        }
        ended.addProperty("asked", asked);
        write("ended", ended);
    }

    private static void end(Transaction transaction, String plan) throws Exception {
        (plan.equals("commit") ? transaction.commit() : transaction.abort()).get(CALL_SECONDS_MAX, TimeUnit.SECONDS);
    }

    /** The names of the classes of a failure and its causes, and what the last one says. */
    private static String text(Throwable failure) {
        Throwable inner = failure instanceof ExecutionException && failure.getCause() != null ? failure.getCause() : failure;
        return inner.getClass().getSimpleName() + ": " + inner.getMessage();
    }

    private void flood(PulsarClient client) throws Exception {
        int opened = 0;
        String error = "";
        long beganNs = System.nanoTime();
        while (error.isEmpty() && opened < options.get("most").getAsInt()) {
            beganNs = System.nanoTime();
            try {
                begin(client);
                opened++;
            } catch (ExecutionException | TimeoutException failure) {
                error = text(failure);
            }
        }
        JsonObject flood = new JsonObject();
        flood.addProperty("opened", opened);
        flood.addProperty("error", error);
        flood.addProperty("took_ms", (System.nanoTime() - beganNs) / 1_000_000);
        write("flood", flood);
    }
}
