import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * BookKeeper's own client behind a line protocol: a line in is {@code operation key=value …}, the line out is
 * {@code ok key=value …} or {@code error CODE text}. CODE is BKException's. Everything is kept by the names that the
 * asking side gives (client, handle). Entries are made from the ledger's seed and their number, so that each is checked
 * byte by byte when it is read.
 */
public final class LedgerDriver {
    private static final int PENDING_MAX = 200;
    private static final long WAIT_SECONDS = 60;

    private final Map<String, BookKeeper> clients = new LinkedHashMap<>();
    private final Map<String, LedgerHandle> handles = new LinkedHashMap<>();
    private final Map<String, Load> loads = new LinkedHashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        LedgerDriver driver = new LedgerDriver();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(driver.answer(line));
            answers.flush();
        }
        System.exit(0);
    }

    private String answer(String line) {
        String[] words = line.split(" ");
        Map<String, String> given = new LinkedHashMap<>();
        for (String word : Arrays.asList(words).subList(1, words.length)) {
            int equals = word.indexOf('=');
            given.put(word.substring(0, equals), word.substring(equals + 1));
        }
        try {
            return ("ok " + perform(words[0], new Options(given))).trim();
        } catch (BKException error) {
            return "error " + error.getCode() + " " + oneLine(error);
        } catch (Exception | AssertionError error) {
            Throwable cause = error.getCause();
            if (cause instanceof BKException) {
                return "error " + ((BKException) cause).getCode() + " " + oneLine(cause);
            }
            error.printStackTrace();
            return "error 0 " + oneLine(error);
        }
    }

    private static String oneLine(Throwable error) {
        return error.toString().replace('\n', ' ');
    }

    private String perform(String operation, Options options) throws Exception {
        switch (operation) {
            case "client": return client(options);
            case "close-client": clients.remove(options.text("client")).close(); return "";
            case "create": return create(options);
            case "open": return open(options);
            case "add": return add(handle(options), options);
            case "add-pending": return addPending(handle(options), options);
            case "load": loads.put(options.text("handle"), new Load(handle(options), options)); return "";
            case "stop-load": return loads.remove(options.text("handle")).stop();
            case "loaded": return loads.get(options.text("handle")).state();
            case "force": handle(options).force().get(WAIT_SECONDS, TimeUnit.SECONDS); return state(handle(options));
            case "read": return read(handle(options), options);
            case "lac": return "lac=" + handle(options).readLastConfirmed();
            case "try-lac": return "lac=" + handle(options).tryReadLastConfirmed();
            case "explicit-lac": return "lac=" + handle(options).readExplicitLastConfirmed();
            case "long-poll": return longPoll(handle(options), options);
            case "state": return state(handle(options));
            case "close": handles.remove(options.text("handle")).close(); return "";
            case "forget": handles.remove(options.text("handle")); return "";
            case "delete": clients.get(options.text("client")).deleteLedger(options.number("ledger")); return "";
            case "bookies": return bookies(clients.get(options.text("client")));
            case "entries-of": return entriesOf(clients.get(options.text("client")), options);
            default: throw new IllegalArgumentException("no operation " + operation);
        }
    }

    private String client(Options options) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        if (!options.text("conf", "").isEmpty()) {
            configuration.loadConf(java.nio.file.Path.of(options.text("conf")).toUri().toURL());
        }
        configuration.setMetadataServiceUri(options.text("uri"));
        configuration.setUseV2WireProtocol(options.yes("v2"));
        configuration.setExplictLacInterval((int) options.number("explicitLacMs", 0));
        configuration.setAddEntryTimeout(5);
        configuration.setReadEntryTimeout(5);
        configuration.setZkTimeout(10_000);
        configuration.setNumIOThreads(1);
        configuration.setNumWorkerThreads(1);
        configuration.setSpeculativeReadTimeout(0);
        configuration.setProperty("enableBookieFailureTracking", true);
        clients.put(options.text("client"), new BookKeeper(configuration));
        return "";
    }

    private String create(Options options) throws Exception {
        BookKeeper client = clients.get(options.text("client"));
        EnumSet<WriteFlag> flags =
                options.yes("deferred") ? EnumSet.of(WriteFlag.DEFERRED_SYNC) : EnumSet.noneOf(WriteFlag.class);
        LedgerHandle created = (LedgerHandle) client.newCreateLedgerOp()
                .withEnsembleSize((int) options.number("e", 3))
                .withWriteQuorumSize((int) options.number("qw", 3))
                .withAckQuorumSize((int) options.number("qa", 2))
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.valueOf(options.text("digest", "CRC32C")))
                .withPassword(options.bytes("password"))
                .withWriteFlags(flags)
                .execute().get(WAIT_SECONDS, TimeUnit.SECONDS);
        handles.put(options.text("handle"), created);
        return "ledger=" + created.getId() + " " + state(created);
    }

    private String open(Options options) throws Exception {
        BookKeeper client = clients.get(options.text("client"));
        DigestType digest = DigestType.fromApiDigestType(
                org.apache.bookkeeper.client.api.DigestType.valueOf(options.text("digest", "CRC32C")));
        long ledger = options.number("ledger");
        LedgerHandle opened = options.yes("recovery")
                ? client.openLedger(ledger, digest, options.bytes("password"))
                : client.openLedgerNoRecovery(ledger, digest, options.bytes("password"));
        handles.put(options.text("handle"), opened);
        return state(opened);
    }

    private static String add(LedgerHandle handle, Options options) throws Exception {
        int count = (int) options.number("count");
        long first = handle.getLastAddPushed() + 1;
        CountDownLatch answered = new CountDownLatch(count);
        AtomicInteger failure = new AtomicInteger();
        Semaphore room = new Semaphore(PENDING_MAX);
        for (long entry = first; entry < first + count; entry++) {
            room.acquire();
            handle.asyncAddEntry(payload(options.text("seed"), entry, options), (code, from, id, context) -> {
                if (code != 0) {
                    failure.compareAndSet(0, code);
                }
                room.release();
                answered.countDown();
            }, null);
        }
        if (!answered.await(WAIT_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException("adds are not answered: " + answered.getCount() + " of " + count);
        }
        if (failure.get() != 0) {
            throw BKException.create(failure.get());
        }
        return state(handle);
    }

    private static String addPending(LedgerHandle handle, Options options) throws Exception {
        long first = handle.getLastAddPushed() + 1;
        for (long entry = first; entry < first + options.number("count"); entry++) {
            handle.asyncAddEntry(payload(options.text("seed"), entry, options), (code, from, id, context) -> { }, null);
        }
        return "";
    }

    private static String read(LedgerHandle handle, Options options) throws Exception {
        long first = options.number("first", 0);
        long last = options.number("last", handle.getLastAddConfirmed());
        long count = 0;
        while (first <= last) {
            long to = Math.min(last, first + PENDING_MAX - 1);
            Enumeration<LedgerEntry> entries;
            if (options.yes("batch")) {
                entries = handle.batchReadEntries(first, (int) (to - first + 1), 4 << 20);
            } else if (options.yes("unconfirmed")) {
                entries = handle.readUnconfirmedEntries(first, to);
            } else {
                entries = handle.readEntries(first, to);
            }
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                check(entry.getEntryId() == first, "entry " + entry.getEntryId() + " instead of " + first);
                check(Arrays.equals(entry.getEntry(), payload(options.text("seed"), first, options)), "bytes of " + first);
                first++;
                count++;
            }
        }
        return "count=" + count;
    }

    private static String longPoll(LedgerHandle handle, Options options) throws Exception {
        long begin = System.nanoTime();
        LastConfirmedAndEntry found = handle.readLastAddConfirmedAndEntryAsync(
                options.number("entry"), options.number("timeoutMs"), false).get(WAIT_SECONDS, TimeUnit.SECONDS);
        String answer = "lac=" + found.getLastAddConfirmed() + " has=" + found.hasEntry();
        if (found.hasEntry()) {
            long entry = found.getEntry().getEntryId();
            check(Arrays.equals(found.getEntry().getEntryBytes(), payload(options.text("seed"), entry, options)), "bytes");
            answer += " entry=" + entry;
        }
        found.close();
        return answer + " ms=" + (System.nanoTime() - begin) / 1_000_000;
    }

    private static String state(LedgerHandle handle) {
        LedgerMetadata metadata = handle.getLedgerMetadata();
        StringBuilder ensembles = new StringBuilder();
        metadata.getAllEnsembles().forEach((first, bookies) ->
                ensembles.append(ensembles.length() == 0 ? "" : ";").append(first).append("@").append(joined(bookies)));
        return "lac=" + handle.getLastAddConfirmed() + " length=" + handle.getLength() + " state=" + metadata.getState()
                + " ensembles=" + ensembles;
    }

    private static String joined(Iterable<BookieId> bookies) {
        StringBuilder text = new StringBuilder();
        for (BookieId bookie : bookies) {
            text.append(text.length() == 0 ? "" : ",").append(bookie);
        }
        return text.toString();
    }

    private static String bookies(BookKeeper client) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client)) {
            return "writable=" + joined(admin.getAvailableBookies()) + " readonly=" + joined(admin.getReadOnlyBookies());
        }
    }

    private static String entriesOf(BookKeeper client, Options options) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client)) {
            BookieId bookie = BookieId.parse(options.text("bookie"));
            return "count=" + admin.asyncGetListOfEntriesOfLedger(bookie, options.number("ledger"))
                    .get(WAIT_SECONDS, TimeUnit.SECONDS).getTotalNumOfAvailableEntries();
        }
    }

    private LedgerHandle handle(Options options) {
        return handles.get(options.text("handle"));
    }

    /** The entry's bytes: a head that names it, repeated to the size. */
    private static byte[] payload(String seed, long entry, Options options) {
        byte[] head = (seed + ":" + entry + ":").getBytes(StandardCharsets.UTF_8);
        byte[] bytes = new byte[(int) options.number("size", 100)];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = head[at % head.length];
        }
        return bytes;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** Adds entry after entry on a thread of its own until it is stopped or refused. */
    private static final class Load {
        private final LedgerHandle handle;
        private final AtomicLong confirmed = new AtomicLong(-1);
        private final AtomicInteger failure = new AtomicInteger();
        private final Semaphore room = new Semaphore(PENDING_MAX);
        private final Thread thread;
        private volatile boolean stopped;

        Load(LedgerHandle handle, Options options) {
            this.handle = handle;
            thread = new Thread(() -> run(options), "load");
            thread.start();
        }

        private void run(Options options) {
            try {
                while (!stopped && failure.get() == 0) {
                    room.acquire();
                    long entry = handle.getLastAddPushed() + 1;
                    handle.asyncAddEntry(payload(options.text("seed"), entry, options), this::answered, null);
                    Thread.sleep(options.number("pauseMs", 1));
                }
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }

        private void answered(int code, LedgerHandle from, long entry, Object context) {
            if (code == 0) {
                confirmed.accumulateAndGet(entry, Math::max);
            } else {
                failure.compareAndSet(0, code);
            }
            room.release();
        }

        String stop() throws Exception {
            stopped = true;
            thread.join();
            if (!room.tryAcquire(PENDING_MAX, WAIT_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException("adds are not answered");
            }
            return state();
        }

        String state() {
            return "confirmed=" + confirmed.get() + " failure=" + failure.get();
        }
    }

    /** What a line gives by name. */
    private static final class Options {
        private final Map<String, String> given;

        Options(Map<String, String> given) {
            this.given = given;
        }

        String text(String name) {
            String value = given.get(name);
            if (value == null) {
                throw new IllegalArgumentException(name + " is missing");
            }
            return value;
        }

        String text(String name, String otherwise) {
            return given.getOrDefault(name, otherwise);
        }

        long number(String name) {
            return Long.parseLong(text(name));
        }

        long number(String name, long otherwise) {
            return given.containsKey(name) ? number(name) : otherwise;
        }

        boolean yes(String name) {
            return "true".equals(given.get(name));
        }

        byte[] bytes(String name) {
            return text(name, "").getBytes(StandardCharsets.UTF_8);
        }
    }
}
