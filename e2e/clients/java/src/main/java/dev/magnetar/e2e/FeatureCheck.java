package dev.magnetar.e2e;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * One small check for each feature of the stock Java client: {@code FeatureCheck SERVICE_URL ADMIN_URL [CHECK…]}.
 *
 * <p>Every public method without parameters is a check; each prints {@code OK name} or {@code FAIL name: why}. The exit
 * code is the number of failures. Topics are new for every run.
 */
public final class FeatureCheck implements AutoCloseable {
    private static final int WAIT_S = 15;
    private static final HttpClient HTTP = HttpClient.newHttpClient();

    private final String serviceUrl;
    private final String adminUrl;
    private final PulsarClient client;
    private final long run = System.currentTimeMillis();
    private String check = "";

    private FeatureCheck(String serviceUrl, String adminUrl) throws PulsarClientException {
        this.serviceUrl = serviceUrl;
        this.adminUrl = adminUrl;
        this.client = PulsarClient.builder().serviceUrl(serviceUrl).build();
    }

    public static void main(String[] arguments) throws Exception {
        int failures = 0;
        List<String> wanted = Arrays.asList(arguments).subList(2, arguments.length);
        try (FeatureCheck checks = new FeatureCheck(arguments[0], arguments[1])) {
            Method[] methods = FeatureCheck.class.getDeclaredMethods();
            Arrays.sort(methods, Comparator.comparing(Method::getName));
            for (Method method : methods) {
                boolean isCheck = java.lang.reflect.Modifier.isPublic(method.getModifiers())
                        && method.getParameterCount() == 0 && !method.getName().equals("close");
                if (isCheck && (wanted.isEmpty() || wanted.contains(method.getName()))) {
                    failures += checks.perform(method) ? 0 : 1;
                }
            }
        }
        System.exit(failures);
    }

    private boolean perform(Method method) throws IllegalAccessException {
        check = method.getName();
        long startedMs = System.currentTimeMillis();
        try {
            method.invoke(this);
            System.out.printf("OK %s (%d ms)%n", check, System.currentTimeMillis() - startedMs);
            return true;
        } catch (InvocationTargetException failure) {
            int line = Arrays.stream(failure.getCause().getStackTrace())
                    .filter(frame -> frame.getMethodName().equals(check)).findFirst()
                    .map(StackTraceElement::getLineNumber).orElse(0);
            System.out.printf("FAIL %s: line %d: %s%n", check, line,
                    String.valueOf(failure.getCause()).replace('\n', ' '));
            return false;
        }
    }

    @Override
    public void close() throws PulsarClientException {
        client.close();
    }

    // ---- What the checks are made of.

    private String topic() {
        return "persistent://public/default/java-" + check + "-" + run;
    }

    private Producer<byte[]> producer() throws PulsarClientException {
        return client.newProducer().topic(topic()).enableBatching(false).create();
    }

    private ConsumerBuilder<byte[]> subscription(String name, SubscriptionType type) {
        return client.newConsumer().topic(topic()).subscriptionName(name).subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private List<MessageId> send(Producer<byte[]> producer, int count) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            sent.add(producer.sendAsync(bytes("message-" + number)));
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> future : sent) {
            ids.add(future.get(WAIT_S, TimeUnit.SECONDS));
        }
        return ids;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws PulsarClientException {
        Message<T> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("nothing arrived in " + WAIT_S + " s");
        }
        return message;
    }

    private static void nothing(Consumer<?> consumer, int waitMs) throws PulsarClientException {
        Message<?> message = consumer.receive(waitMs, TimeUnit.MILLISECONDS);
        equal(null, message == null ? null : message.getMessageId() + " " + message.getRedeliveryCount());
    }

    private static void equal(Object expected, Object actual) {
        if (!java.util.Objects.equals(expected, actual)) {
            throw new AssertionError("expected " + expected + " but got " + actual);
        }
    }

    private static void holds(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    private interface Action {
        void perform() throws Exception;
    }

    private static void refused(Class<? extends Exception> kind, Action action) throws Exception {
        try {
            action.perform();
        } catch (Exception failure) {
            holds(kind.isInstance(failure) || kind.isInstance(failure.getCause()), "refused with " + failure);
            return;
        }
        throw new AssertionError("was not refused with " + kind.getSimpleName());
    }

    private String admin(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(adminUrl + "/admin/v2/" + path))
                .header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> response = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        holds(response.statusCode() < 300, method + " " + path + ": " + response.statusCode() + " " + response.body());
        return response.body();
    }

    private String adminPath() {
        return topic().replace("://", "/");
    }

    private void partitioned(int partitions) throws Exception {
        admin("PUT", adminPath() + "/partitions", Integer.toString(partitions));
    }

    // ---- Reading.

    public void readerFromEarliest() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            send(producer, 10);
        }
        try (Reader<byte[]> reader = client.newReader().topic(topic()).startMessageId(MessageId.earliest).create()) {
            for (int number = 0; number < 10; number++) {
                holds(reader.hasMessageAvailable(), "a message is available");
                equal("message-" + number, text(reader.readNext(WAIT_S, TimeUnit.SECONDS)));
            }
            holds(!reader.hasMessageAvailable(), "the end is reached");
        }
    }

    public void readerFromMessageId() throws Exception {
        List<MessageId> ids;
        try (Producer<byte[]> producer = producer()) {
            ids = send(producer, 10);
        }
        try (Reader<byte[]> after = client.newReader().topic(topic()).startMessageId(ids.get(4)).create();
                Reader<byte[]> from = client.newReader().topic(topic()).startMessageId(ids.get(4))
                        .startMessageIdInclusive().create()) {
            equal("message-5", text(after.readNext(WAIT_S, TimeUnit.SECONDS)));
            equal("message-4", text(from.readNext(WAIT_S, TimeUnit.SECONDS)));
        }
    }

    public void readerInsideBatch() throws Exception {
        List<MessageId> ids;
        try (Producer<byte[]> producer = client.newProducer().topic(topic())
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            ids = send(producer, 10);
        }
        equal(((MessageIdAdv) ids.get(0)).getEntryId(), ((MessageIdAdv) ids.get(9)).getEntryId());
        try (Reader<byte[]> reader = client.newReader().topic(topic()).startMessageId(ids.get(6)).create()) {
            equal("message-7", text(reader.readNext(WAIT_S, TimeUnit.SECONDS)));
        }
    }

    public void readerFromLatest() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            send(producer, 3);
            try (Reader<byte[]> reader = client.newReader().topic(topic()).startMessageId(MessageId.latest).create()) {
                holds(!reader.hasMessageAvailable(), "nothing is available at the end");
                producer.send(bytes("later"));
                equal("later", text(reader.readNext(WAIT_S, TimeUnit.SECONDS)));
            }
        }
    }

    public void readerSeek() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            List<MessageId> ids = send(producer, 10);
            try (Reader<byte[]> reader =
                    client.newReader().topic(topic()).startMessageId(MessageId.earliest).create()) {
                reader.readNext(WAIT_S, TimeUnit.SECONDS);
                reader.seek(ids.get(7));
                equal("message-8", text(reader.readNext(WAIT_S, TimeUnit.SECONDS)));
            }
        }
    }

    public void tableView() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            for (String value : List.of("one", "two", "three")) {
                producer.newMessage().key("a").value(bytes(value)).send();
            }
            producer.newMessage().key("b").value(bytes("four")).send();
        }
        try (TableView<byte[]> view = client.newTableView().topic(topic()).create()) {
            equal(Set.of("a", "b"), new HashSet<>(view.keySet()));
            equal("three", new String(view.get("a"), StandardCharsets.UTF_8));
        }
    }

    public void readCompacted() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            for (int round = 0; round < 5; round++) {
                producer.newMessage().key("a").value(bytes("a-" + round)).send();
                producer.newMessage().key("b").value(bytes("b-" + round)).send();
            }
            admin("PUT", adminPath() + "/compaction", "");
            String status = "";
            for (int attempt = 0; attempt < WAIT_S * 5 && !status.contains("SUCCESS"); attempt++) {
                Thread.sleep(200);
                status = admin("GET", adminPath() + "/compaction", "");
            }
            holds(status.contains("SUCCESS"), "compaction ends: " + status);
            producer.newMessage().key("c").value(bytes("c-0")).send();
        }
        try (Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).readCompacted(true).subscribe()) {
            equal("a-4", text(next(consumer)));
            equal("b-4", text(next(consumer)));
            equal("c-0", text(next(consumer)));
        }
    }

    // ---- Positions.

    public void seekById() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            List<MessageId> ids = send(producer, 10);
            for (int number = 0; number < 10; number++) {
                consumer.acknowledge(next(consumer));
            }
            consumer.seek(ids.get(3));
            equal("message-4", text(next(consumer)));
            consumer.seek(MessageId.earliest);
            equal("message-0", text(next(consumer)));
            consumer.seek(MessageId.latest);
            nothing(consumer, 500);
        }
    }

    public void seekByTime() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared).subscribe()) {
            send(producer, 3);
            Thread.sleep(50);
            long middleMs = System.currentTimeMillis();
            Thread.sleep(50);
            producer.send(bytes("after"));
            for (int number = 0; number < 4; number++) {
                consumer.acknowledge(next(consumer));
            }
            consumer.seek(middleMs);
            equal("after", text(next(consumer)));
        }
    }

    public void getLastMessageId() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            List<MessageId> ids = send(producer, 5);
            equal(0, consumer.getLastMessageIds().get(0).compareTo(ids.get(4)));
        }
    }

    public void initialPositionLatest() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            send(producer, 3);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic()).subscriptionName("s").subscribe()) {
                producer.send(bytes("later"));
                equal("later", text(next(consumer)));
            }
        }
    }

    public void nonDurableSubscription() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            try (Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive)
                    .subscriptionMode(SubscriptionMode.NonDurable).subscribe()) {
                producer.send(bytes("one"));
                equal("one", text(next(consumer)));
            }
            Thread.sleep(500);
            holds(!admin("GET", adminPath() + "/subscriptions", "").contains("\"s\""), "the subscription is gone");
        }
    }

    public void unsubscribe() throws Exception {
        Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe();
        consumer.unsubscribe();
        equal("[]", admin("GET", adminPath() + "/subscriptions", "").replace(" ", ""));
    }

    // ---- Acknowledging.

    public void ackReceipt() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            send(producer, 10);
        }
        try (Consumer<byte[]> consumer =
                subscription("s", SubscriptionType.Shared).isAckReceiptEnabled(true).subscribe()) {
            for (int number = 0; number < 10; number++) {
                consumer.acknowledgeAsync(next(consumer)).get(WAIT_S, TimeUnit.SECONDS);
            }
        }
        try (Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared).subscribe()) {
            nothing(consumer, 500);
        }
    }

    public void cumulativeAck() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            send(producer, 10);
        }
        try (Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            for (int number = 0; number < 5; number++) {
                next(consumer);
            }
            consumer.acknowledgeCumulative(next(consumer));
        }
        try (Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            equal("message-6", text(next(consumer)));
        }
    }

    public void batchIndexAck() throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic())
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            List<MessageId> ids = send(producer, 10);
            equal(((MessageIdAdv) ids.get(0)).getEntryId(), ((MessageIdAdv) ids.get(9)).getEntryId());
        }
        try (Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true).subscribe()) {
            for (int number = 0; number < 10; number++) {
                Message<byte[]> message = next(consumer);
                if (number % 2 == 0) {
                    consumer.acknowledgeAsync(message).get(WAIT_S, TimeUnit.SECONDS);
                }
            }
        }
        try (Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).subscribe()) {
            for (int number = 1; number < 10; number += 2) {
                equal("message-" + number, text(next(consumer)));
            }
            nothing(consumer, 300);
        }
    }

    public void negativeAck() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe()) {
            producer.send(bytes("one"));
            consumer.negativeAcknowledge(next(consumer));
            Message<byte[]> again = next(consumer);
            equal("one", text(again));
            equal(1, again.getRedeliveryCount());
        }
    }

    public void ackTimeout() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared)
                        .ackTimeout(1, TimeUnit.SECONDS).subscribe()) {
            producer.send(bytes("one"));
            equal("one", text(next(consumer)));
            equal(1, next(consumer).getRedeliveryCount());
        }
    }

    public void redeliverUnacknowledged() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Failover).subscribe()) {
            send(producer, 5);
            for (int number = 0; number < 5; number++) {
                next(consumer);
            }
            consumer.redeliverUnacknowledgedMessages();
            for (int number = 0; number < 5; number++) {
                equal("message-" + number, text(next(consumer)));
            }
        }
    }

    public void deadLetterTopic() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> dead = client.newConsumer().topic(topic() + "-s-DLQ").subscriptionName("d").subscribe();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe()) {
            producer.newMessage().value(bytes("poison")).property("p", "1").send();
            for (int attempt = 0; attempt < 3; attempt++) {
                Message<byte[]> message = next(consumer);
                equal(attempt, message.getRedeliveryCount());
                consumer.negativeAcknowledge(message);
            }
            Message<byte[]> message = next(dead);
            equal("poison", text(message));
            equal("1", message.getProperty("p"));
            equal(topic(), message.getProperty("REAL_TOPIC"));
        }
    }

    /** Only what a client refuses counts: that the topic was unloaded does not, and takes no count away either. */
    public void deadLetterOverUnloads() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> dead = client.newConsumer().topic(topic() + "-s-DLQ").subscriptionName("d").subscribe();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(3).build()).subscribe()) {
            producer.send(bytes("poison"));
            for (int attempt = 0; attempt < 4; attempt++) {
                equal(attempt, next(consumer).getRedeliveryCount());
                admin("PUT", adminPath() + "/unload", "");
                Message<byte[]> message = next(consumer);
                equal(attempt, message.getRedeliveryCount());
                consumer.negativeAcknowledge(message);
            }
            equal("poison", text(next(dead)));
        }
    }

    public void retryLetterTopic() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> dead = client.newConsumer().topic(topic() + "-s-DLQ").subscriptionName("d").subscribe();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared).enableRetry(true)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe()) {
            producer.send(bytes("again"));
            for (int attempt = 0; attempt < 3; attempt++) {
                Message<byte[]> message = next(consumer);
                equal(attempt == 0 ? null : Integer.toString(attempt), message.getProperty("RECONSUMETIMES"));
                consumer.reconsumeLater(message, 300, TimeUnit.MILLISECONDS);
            }
            equal("again", text(next(dead)));
        }
    }

    // ---- Subscription types.

    public void exclusiveBusy() throws Exception {
        try (Consumer<byte[]> first = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            refused(PulsarClientException.ConsumerBusyException.class,
                    () -> subscription("s", SubscriptionType.Exclusive).subscribe());
            refused(PulsarClientException.ConsumerBusyException.class,
                    () -> subscription("s", SubscriptionType.Shared).subscribe());
        }
    }

    /** In a partition the first name is active; a topic without partitions chooses by a hash of its name. */
    public void failoverTakeover() throws Exception {
        partitioned(1);
        Map<String, Boolean> active = new ConcurrentHashMap<>();
        ConsumerEventListener listener = new ConsumerEventListener() {
            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                active.put(consumer.getConsumerName(), true);
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                active.put(consumer.getConsumerName(), false);
            }
        };
        try (Producer<byte[]> producer = producer()) {
            Consumer<byte[]> first = subscription("s", SubscriptionType.Failover).consumerName("a")
                    .consumerEventListener(listener).subscribe();
            try (Consumer<byte[]> second = subscription("s", SubscriptionType.Failover).consumerName("b")
                    .consumerEventListener(listener).subscribe()) {
                send(producer, 4);
                first.acknowledge(next(first));
                equal("message-1", text(next(first)));
                nothing(second, 300);
                first.close();
                for (int number = 1; number < 4; number++) {
                    equal("message-" + number, text(next(second)));
                }
                equal(true, active.get("b"));
            }
        }
    }

    public void failoverPriority() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> low = subscription("s", SubscriptionType.Failover).consumerName("a")
                        .priorityLevel(1).subscribe();
                Consumer<byte[]> high = subscription("s", SubscriptionType.Failover).consumerName("b")
                        .priorityLevel(0).subscribe()) {
            Thread.sleep(1500);
            producer.send(bytes("one"));
            equal("one", text(next(high)));
            nothing(low, 200);
        }
    }

    public void sharedSpreads() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> first = subscription("s", SubscriptionType.Shared).receiverQueueSize(5).subscribe();
                Consumer<byte[]> second = subscription("s", SubscriptionType.Shared).receiverQueueSize(5).subscribe()) {
            send(producer, 10);
            for (int number = 0; number < 5; number++) {
                next(first);
                next(second);
            }
        }
    }

    public void sharedRedeliversToOther() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            Consumer<byte[]> first = subscription("s", SubscriptionType.Shared).subscribe();
            send(producer, 5);
            for (int number = 0; number < 5; number++) {
                next(first);
            }
            try (Consumer<byte[]> second = subscription("s", SubscriptionType.Shared).subscribe()) {
                first.close();
                Set<String> seen = new HashSet<>();
                for (int number = 0; number < 5; number++) {
                    seen.add(text(next(second)));
                }
                equal(5, seen.size());
            }
        }
    }

    public void keySharedAutoSplit() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> first = subscription("s", SubscriptionType.Key_Shared).subscribe();
                Consumer<byte[]> second = subscription("s", SubscriptionType.Key_Shared).subscribe()) {
            for (int number = 0; number < 200; number++) {
                producer.newMessage().key("key-" + number % 20).value(bytes("" + number)).sendAsync();
            }
            producer.flush();
            Set<String> keysOfFirst = new HashSet<>();
            Set<String> keysOfSecond = new HashSet<>();
            int arrived = 0;
            long deadline = System.currentTimeMillis() + WAIT_S * 1000;
            while (arrived < 200 && System.currentTimeMillis() < deadline) {
                for (var side : List.of(Map.entry(first, keysOfFirst), Map.entry(second, keysOfSecond))) {
                    Message<byte[]> message = side.getKey().receive(20, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        side.getValue().add(message.getKey());
                        side.getKey().acknowledge(message);
                        arrived++;
                    }
                }
            }
            equal(200, arrived);
            holds(!keysOfFirst.isEmpty() && !keysOfSecond.isEmpty(), "both consumers have keys");
            keysOfFirst.retainAll(keysOfSecond);
            equal(Set.of(), keysOfFirst);
        }
    }

    public void keySharedSticky() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> low = subscription("s", SubscriptionType.Key_Shared)
                        .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 32767))).subscribe();
                Consumer<byte[]> high = subscription("s", SubscriptionType.Key_Shared)
                        .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(32768, 65535)))
                        .subscribe()) {
            refused(PulsarClientException.class, () -> subscription("s", SubscriptionType.Key_Shared)
                    .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(100, 200))).subscribe());
            for (int number = 0; number < 40; number++) {
                producer.newMessage().key("key-" + number).value(bytes("" + number)).sendAsync();
            }
            producer.flush();
            Set<String> seen = new LinkedHashSet<>();
            for (Consumer<byte[]> consumer : List.of(low, high)) {
                int before = seen.size();
                Message<byte[]> message;
                while ((message = consumer.receive(500, TimeUnit.MILLISECONDS)) != null) {
                    int hash = org.apache.pulsar.common.util.Murmur3_32Hash.getInstance()
                            .makeHash(message.getKeyBytes()) % 65536;
                    equal(consumer == low, hash < 32768);
                    seen.add(message.getKey());
                }
                holds(seen.size() > before, "each range gets keys");
            }
            equal(40, seen.size());
        }
    }

    public void sharedWithOrderingKey() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Key_Shared).subscribe()) {
            producer.newMessage().key("k").orderingKey(bytes("order")).value(bytes("one")).send();
            equal("order", new String(next(consumer).getOrderingKey(), StandardCharsets.UTF_8));
        }
    }

    // ---- Producing.

    public void messageFields() throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic()).producerName("named").create();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            producer.newMessage().key("k").property("a", "1").property("b", "ü").eventTime(42).sequenceId(7)
                    .value(bytes("one")).send();
            Message<byte[]> message = next(consumer);
            equal("k", message.getKey());
            equal(Map.of("a", "1", "b", "ü"), message.getProperties());
            equal(42L, message.getEventTime());
            equal(7L, message.getSequenceId());
            equal("named", message.getProducerName());
            equal(topic(), message.getTopicName());
            holds(Math.abs(message.getPublishTime() - System.currentTimeMillis()) < 60_000, "publish time is now");
        }
    }

    public void producerNameTaken() throws Exception {
        try (Producer<byte[]> first = client.newProducer().topic(topic()).producerName("same").create()) {
            refused(PulsarClientException.ProducerBusyException.class,
                    () -> client.newProducer().topic(topic()).producerName("same").create());
        }
    }

    public void exclusiveProducer() throws Exception {
        try (Producer<byte[]> first = client.newProducer().topic(topic())
                .accessMode(ProducerAccessMode.Exclusive).create()) {
            refused(PulsarClientException.ProducerFencedException.class, () -> client.newProducer().topic(topic())
                    .accessMode(ProducerAccessMode.Exclusive).create());
            refused(PulsarClientException.ProducerBusyException.class,
                    () -> client.newProducer().topic(topic()).create());
        }
    }

    public void waitForExclusive() throws Exception {
        Producer<byte[]> first =
                client.newProducer().topic(topic()).accessMode(ProducerAccessMode.Exclusive).create();
        CompletableFuture<Producer<byte[]>> second =
                client.newProducer().topic(topic()).accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        Thread.sleep(300);
        holds(!second.isDone(), "the second producer waits");
        first.close();
        try (Producer<byte[]> producer = second.get(WAIT_S, TimeUnit.SECONDS)) {
            producer.send(bytes("one"));
        }
    }

    public void exclusiveWithFencing() throws Exception {
        Producer<byte[]> first =
                client.newProducer().topic(topic()).accessMode(ProducerAccessMode.Exclusive).create();
        try (Producer<byte[]> second = client.newProducer().topic(topic())
                .accessMode(ProducerAccessMode.ExclusiveWithFencing).create()) {
            second.send(bytes("one"));
            refused(PulsarClientException.class, () -> first.send(bytes("two")));
        }
    }

    public void chunkedMessage() throws Exception {
        byte[] large = new byte[12 * 1024 * 1024];
        new java.util.Random(1).nextBytes(large);
        try (Producer<byte[]> producer = client.newProducer().topic(topic()).enableBatching(false)
                        .enableChunking(true).create();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            producer.send(large);
            producer.send(bytes("small"));
            Message<byte[]> message = next(consumer);
            holds(Arrays.equals(large, message.getData()), "the payload is whole");
            consumer.acknowledge(message);
            equal("small", text(next(consumer)));
        }
    }

    public void tooLargeMessage() throws Exception {
        try (Producer<byte[]> producer = producer()) {
            refused(PulsarClientException.InvalidMessageException.class, () -> producer.send(new byte[6 << 20]));
            producer.send(bytes("fits"));
        }
    }

    public void delayedMessage() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared).subscribe()) {
            long startMs = System.currentTimeMillis();
            producer.newMessage().value(bytes("late")).deliverAfter(2, TimeUnit.SECONDS).send();
            producer.newMessage().value(bytes("soon")).send();
            equal("soon", text(next(consumer)));
            equal("late", text(next(consumer)));
            long tookMs = System.currentTimeMillis() - startMs;
            holds(tookMs >= 1900 && tookMs < 5000, "delivered after " + tookMs + " ms");
        }
    }

    public void deduplication() throws Exception {
        admin("PUT", "namespaces/public/java-dedup-" + run, "{}");
        admin("POST", "namespaces/public/java-dedup-" + run + "/deduplication", "true");
        String topic = "persistent://public/java-dedup-" + run + "/t";
        try (Producer<byte[]> producer = client.newProducer().topic(topic).producerName("p").enableBatching(false)
                        .create();
                Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (long sequence : new long[] {1, 2, 2, 1, 3}) {
                producer.newMessage().sequenceId(sequence).value(bytes("" + sequence)).send();
            }
            for (int number = 1; number <= 3; number++) {
                equal("" + number, text(next(consumer)));
            }
            nothing(consumer, 300);
        }
        try (Producer<byte[]> producer = client.newProducer().topic(topic).producerName("p").create()) {
            equal(3L, producer.getLastSequenceId());
        }
    }

    // ---- Topics.

    public void nonPersistentTopic() throws Exception {
        String topic = topic().replace("persistent:", "non-persistent:");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.send(bytes("one"));
            equal("one", text(next(consumer)));
        }
    }

    public void patternSubscription() throws Exception {
        for (String suffix : List.of("-a", "-b")) {
            client.newProducer().topic(topic() + suffix).create().close();
        }
        try (Consumer<byte[]> consumer = client.newConsumer().topicsPattern(Pattern.compile(topic() + "-.*"))
                .subscriptionTopicsMode(RegexSubscriptionMode.PersistentOnly).subscriptionName("s")
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Set<String> seen = new HashSet<>();
            for (String suffix : List.of("-a", "-b", "-c")) {
                try (Producer<byte[]> producer = client.newProducer().topic(topic() + suffix).create()) {
                    producer.send(bytes(suffix));
                }
            }
            for (int number = 0; number < 3; number++) {
                seen.add(text(next(consumer)));
            }
            equal(Set.of("-a", "-b", "-c"), seen);
        }
    }

    public void severalTopics() throws Exception {
        List<String> topics = List.of(topic() + "-a", topic() + "-b");
        try (Consumer<byte[]> consumer = client.newConsumer().topics(topics).subscriptionName("s").subscribe()) {
            for (String topic : topics) {
                try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
                    producer.send(bytes(topic));
                }
            }
            equal(new HashSet<>(topics), Set.of(text(next(consumer)), text(next(consumer))));
        }
    }

    public void partitionedRouting() throws Exception {
        partitioned(4);
        equal(4, client.getPartitionsForTopic(topic()).get(WAIT_S, TimeUnit.SECONDS).size());
        try (Producer<byte[]> producer = client.newProducer().topic(topic()).enableBatching(false)
                        .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared).subscribe()) {
            Set<Integer> partitions = new HashSet<>();
            for (MessageId id : send(producer, 8)) {
                partitions.add(((MessageIdAdv) id).getPartitionIndex());
            }
            equal(4, partitions.size());
            Set<Integer> ofKey = new HashSet<>();
            for (int number = 0; number < 5; number++) {
                MessageId id = producer.newMessage().key("same").value(bytes("x")).send();
                ofKey.add(((MessageIdAdv) id).getPartitionIndex());
            }
            equal(1, ofKey.size());
            for (int number = 0; number < 13; number++) {
                consumer.acknowledge(next(consumer));
            }
        }
    }

    public void partitionsGrow() throws Exception {
        partitioned(2);
        try (Producer<byte[]> producer = client.newProducer().topic(topic()).enableBatching(false)
                        .autoUpdatePartitions(true).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared).autoUpdatePartitions(true)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe()) {
            admin("POST", adminPath() + "/partitions", "4");
            Set<Integer> partitions = new HashSet<>();
            for (int attempt = 0; attempt < WAIT_S * 10 && partitions.size() < 4; attempt++) {
                partitions.add(((MessageIdAdv) producer.send(bytes("x"))).getPartitionIndex());
                Thread.sleep(50);
            }
            equal(4, partitions.size());
            Set<String> arrived = new HashSet<>();
            while (arrived.size() < 4) {
                arrived.add(next(consumer).getTopicName());
            }
        }
    }

    public void terminatedTopic() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            producer.send(bytes("last"));
            admin("POST", adminPath() + "/terminate", "");
            refused(PulsarClientException.class, () -> producer.send(bytes("more")));
            consumer.acknowledge(next(consumer));
            for (int attempt = 0; attempt < 50 && !consumer.hasReachedEndOfTopic(); attempt++) {
                Thread.sleep(100);
            }
            holds(consumer.hasReachedEndOfTopic(), "the end of the topic is reached");
        }
    }

    public void lookupOverHttp() throws Exception {
        try (PulsarClient overHttp = PulsarClient.builder().serviceUrl(adminUrl).build();
                Producer<byte[]> producer = overHttp.newProducer().topic(topic()).create()) {
            producer.send(bytes("one"));
        }
    }

    public void unloadedTopic() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Exclusive).subscribe()) {
            producer.send(bytes("before"));
            consumer.acknowledge(next(consumer));
            admin("PUT", adminPath() + "/unload", "");
            producer.send(bytes("after"));
            equal("after", text(next(consumer)));
        }
    }

    // ---- Schemas.

    /** A record both schemas describe. */
    public static final class Reading {
        public String sensor;
        public int value;
    }

    /** An incompatible successor: the same field with another type. */
    public static final class BrokenReading {
        public String sensor;
        public String value;
    }

    private void schemaRoundTrip(Schema<Reading> schema) throws Exception {
        try (Consumer<Reading> consumer = client.newConsumer(schema).topic(topic()).subscriptionName("s").subscribe();
                Producer<Reading> producer = client.newProducer(schema).topic(topic()).create()) {
            Reading reading = new Reading();
            reading.sensor = "kitchen";
            reading.value = 21;
            producer.send(reading);
            Message<Reading> message = next(consumer);
            equal("kitchen", message.getValue().sensor);
            equal(21, message.getValue().value);
            holds(message.getSchemaVersion() != null, "the message names its schema's version");
        }
    }

    public void schemaAvro() throws Exception {
        schemaRoundTrip(Schema.AVRO(Reading.class));
    }

    public void schemaJson() throws Exception {
        schemaRoundTrip(Schema.JSON(Reading.class));
    }

    public void schemaIncompatible() throws Exception {
        schemaRoundTrip(Schema.AVRO(Reading.class));
        refused(PulsarClientException.IncompatibleSchemaException.class,
                () -> client.newProducer(Schema.AVRO(BrokenReading.class)).topic(topic()).create());
        refused(PulsarClientException.IncompatibleSchemaException.class,
                () -> client.newProducer(Schema.JSON(Reading.class)).topic(topic()).create());
    }

    public void schemaAutoConsume() throws Exception {
        try (Producer<Reading> producer = client.newProducer(Schema.AVRO(Reading.class)).topic(topic()).create();
                Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic())
                        .subscriptionName("s").subscribe()) {
            Reading reading = new Reading();
            reading.sensor = "cellar";
            producer.send(reading);
            equal("cellar", next(consumer).getValue().getField("sensor"));
        }
    }

    public void schemaPrimitives() throws Exception {
        try (Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic()).subscriptionName("s")
                        .subscribe();
                Producer<String> producer = client.newProducer(Schema.STRING).topic(topic()).create()) {
            producer.send("héllo");
            equal("héllo", next(consumer).getValue());
        }
        refused(PulsarClientException.IncompatibleSchemaException.class,
                () -> client.newProducer(Schema.INT32).topic(topic()).create());
    }

    public void schemaKeyValue() throws Exception {
        Schema<KeyValue<String, Integer>> schema =
                Schema.KeyValue(Schema.STRING, Schema.INT32, KeyValueEncodingType.SEPARATED);
        try (Consumer<KeyValue<String, Integer>> consumer =
                        client.newConsumer(schema).topic(topic()).subscriptionName("s").subscribe();
                Producer<KeyValue<String, Integer>> producer = client.newProducer(schema).topic(topic()).create()) {
            producer.send(new KeyValue<>("k", 7));
            equal(new KeyValue<>("k", 7), next(consumer).getValue());
        }
    }

    // ---- The client's own ways of receiving.

    public void batchReceive() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer = subscription("s", SubscriptionType.Shared).batchReceivePolicy(
                        org.apache.pulsar.client.api.BatchReceivePolicy.builder().maxNumMessages(10)
                                .timeout(WAIT_S, TimeUnit.SECONDS).build()).subscribe()) {
            send(producer, 10);
            Messages<byte[]> messages = consumer.batchReceive();
            equal(10, messages.size());
            consumer.acknowledge(messages);
        }
    }

    public void zeroQueueConsumer() throws Exception {
        try (Producer<byte[]> producer = producer();
                Consumer<byte[]> consumer =
                        subscription("s", SubscriptionType.Shared).receiverQueueSize(0).subscribe()) {
            send(producer, 3);
            for (int number = 0; number < 3; number++) {
                equal("message-" + number, text(consumer.receiveAsync().get(WAIT_S, TimeUnit.SECONDS)));
            }
        }
    }

    public void secondClientSameService() throws Exception {
        try (PulsarClient other = PulsarClient.builder().serviceUrl(serviceUrl).connectionsPerBroker(3).build();
                Producer<byte[]> producer = other.newProducer().topic(topic()).create()) {
            producer.send(bytes("one"));
        }
    }
}
