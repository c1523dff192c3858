import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Loads bookies with BookKeeper's own client, so that both kinds of bookie see the same requests.
 *
 * <p>Arguments are {@code name=value}. {@code mode=add} adds to {@code ledgers} ledgers at once, as fast as {@code
 * outstanding} entries in flight allow or at {@code rate} entries a second. {@code mode=fill} writes {@code entries}
 * entries into one ledger, closes it and prints its id. {@code mode=read} reads ledger {@code ledger} from its first to
 * its last entry while adding at {@code rate}. The lines {@code window start} and {@code window end} enclose what was
 * measured; the last line is JSON.
 */
public final class LedgerLoad {
  private static final byte[] PASSWORD = new byte[0];
  private static final int READ_BATCH = 500;
  private static final PrintStream OUT = System.out;

  private final Map<String, String> options = new HashMap<>();
  private final AtomicBoolean measuring = new AtomicBoolean();
  private final AtomicBoolean stopped = new AtomicBoolean();
  private final AtomicLong added = new AtomicLong();
  private final AtomicLong failed = new AtomicLong();
  private final AtomicLong read = new AtomicLong();
  private final Latencies latencies = new Latencies();

  private LedgerLoad(String[] arguments) {
    for (String argument : arguments) {
      int at = argument.indexOf('=');
      options.put(argument.substring(0, at), argument.substring(at + 1));
    }
  }

  public static void main(String[] arguments) throws Exception {
    System.setOut(System.err); // What the client logs must not stand between the lines that are read.
    new LedgerLoad(arguments).run();
    System.exit(0); // The client's own threads would keep the process for another while.
  }

  private long number(String name, long otherwise) {
    String value = options.get(name);
    return value == null ? otherwise : Long.parseLong(value);
  }

  private void run() throws Exception {
    ClientConfiguration configuration = new ClientConfiguration();
    configuration.setMetadataServiceUri("zk+hierarchical://" + options.get("zookeeper") + "/ledgers");
    configuration.setUseV2WireProtocol(number("version", 2) == 2);
    configuration.setThrottleValue(0);
    configuration.setAddEntryTimeout(30);
    configuration.setReadEntryTimeout(30);
    try (BookKeeper client = new BookKeeper(configuration)) {
      switch (options.get("mode")) {
        case "fill" -> fill(client);
        case "read" -> readWhileAdding(client);
        default -> add(client);
      }
    }
  }

  private LedgerHandle create(BookKeeper client) throws Exception {
    return client.createLedger(
        (int) number("ensemble", 1),
        (int) number("write", 1),
        (int) number("ack", 1),
        BookKeeper.DigestType.CRC32C,
        PASSWORD);
  }

  private byte[] payload() {
    byte[] bytes = new byte[(int) number("size", 1024)];
    ThreadLocalRandom.current().nextBytes(bytes);
    return bytes;
  }

  private void fill(BookKeeper client) throws Exception {
    LedgerHandle ledger = create(client);
    Semaphore room = new Semaphore((int) number("outstanding", 1000));
    byte[] payload = payload();
    long entries = number("entries", 1000);
    for (long entry = 0; entry < entries; entry++) {
      addOne(ledger, payload, room, System.nanoTime());
    }
    room.acquire((int) number("outstanding", 1000));
    if (number("close", 1) == 1) {
      ledger.close();
    }
    OUT.printf("{\"ledger\": %d, \"failed\": %d}%n", ledger.getId(), failed.get());
  }

  private void addOne(LedgerHandle ledger, byte[] payload, Semaphore room, long due) throws Exception {
    room.acquire();
    ledger.asyncAddEntry(
        payload,
        (code, handle, entry, context) -> {
          room.release();
          if (code != 0) {
            failed.incrementAndGet();
          } else if (measuring.get()) {
            added.incrementAndGet();
            latencies.record(System.nanoTime() - due);
          }
        },
        null);
  }

  /** Adds until told to stop. A rate is kept by the clock: a slow answer does not slow the ones behind it. */
  private void addUntilStopped(List<LedgerHandle> ledgers) {
    try {
      byte[] payload = payload();
      Semaphore room = new Semaphore((int) number("outstanding", 1000));
      long rate = number("rate", 0);
      long begin = System.nanoTime();
      for (long count = 0; !stopped.get(); count++) {
        long due = System.nanoTime();
        if (rate > 0) {
          due = begin + count * 1_000_000_000L / rate;
          while (System.nanoTime() < due) {
            LockSupport.parkNanos(due - System.nanoTime());
          }
        }
        addOne(ledgers.get((int) (count % ledgers.size())), payload, room, due);
      }
      room.acquire((int) number("outstanding", 1000));
    } catch (Exception error) {
      error.printStackTrace();
      System.exit(1);
    }
  }

  private List<LedgerHandle> createAll(BookKeeper client) throws Exception {
    List<LedgerHandle> ledgers = new ArrayList<>();
    for (long i = 0; i < number("ledgers", 1); i++) {
      ledgers.add(create(client));
    }
    return ledgers;
  }

  private void add(BookKeeper client) throws Exception {
    List<LedgerHandle> ledgers = createAll(client);
    Thread adder = new Thread(() -> addUntilStopped(ledgers), "adder");
    adder.start();
    double[] window = measure();
    adder.join();
    for (LedgerHandle ledger : ledgers) {
      ledger.close();
    }
    report(window);
  }

  private void readWhileAdding(BookKeeper client) throws Exception {
    List<LedgerHandle> ledgers = createAll(client);
    Thread adder = new Thread(() -> addUntilStopped(ledgers), "adder");
    if (number("rate", 0) > 0) {
      adder.start();
    }
    Thread reader = new Thread(() -> readAgainAndAgain(client), "reader");
    reader.start();
    double[] window = measure();
    reader.join();
    adder.join();
    report(window);
  }

  private void readAgainAndAgain(BookKeeper client) {
    try (LedgerHandle ledger =
        client.openLedgerNoRecovery(number("ledger", 0), BookKeeper.DigestType.CRC32C, PASSWORD)) {
      long last = ledger.getLastAddConfirmed();
      long next = 0;
      while (!stopped.get()) {
        long end = Math.min(last, next + READ_BATCH - 1);
        long bytes = 0;
        var entries = ledger.readEntries(next, end);
        while (entries.hasMoreElements()) {
          LedgerEntry entry = entries.nextElement();
          bytes += entry.getEntryBuffer().readableBytes();
          entry.getEntryBuffer().release();
        }
        if (bytes == 0) {
          throw new IllegalStateException("nothing was read");
        }
        if (measuring.get()) {
          read.addAndGet(end - next + 1);
        }
        next = end == last ? 0 : end + 1;
      }
    } catch (Exception error) {
      error.printStackTrace();
      System.exit(1);
    }
  }

  /** (seconds, client's CPU seconds) of the window. */
  private double[] measure() throws Exception {
    Thread.sleep(number("warmup_ms", 5000));
    OUT.println("window start");
    double cpu = cpuSeconds();
    long begin = System.nanoTime();
    measuring.set(true);
    Thread.sleep(number("window_ms", 10000));
    measuring.set(false);
    double seconds = (System.nanoTime() - begin) / 1e9;
    cpu = cpuSeconds() - cpu;
    OUT.println("window end");
    stopped.set(true);
    return new double[] {seconds, cpu};
  }

  private void report(double[] window) {
    OUT.printf(
        "{\"seconds\": %.3f, \"added\": %d, \"read\": %d, \"failed\": %d, \"p50_ms\": %.3f, \"p99_ms\": %.3f, "
            + "\"max_ms\": %.3f, \"client_cpu_s\": %.2f}%n",
        window[0], added.get(), read.get(), failed.get(), latencies.at(0.5), latencies.at(0.99), latencies.at(1.0),
        window[1]);
  }

  private static double cpuSeconds() {
    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    return system.getProcessCpuTime() / 1e9;
  }

  /** Exact latencies of up to some millions of adds; beyond, every further one replaces a random one. */
  private static final class Latencies {
    private static final int KEPT_MAX = 4_000_000;
    private long[] kept = new long[1024];
    private long count;

    synchronized void record(long nanoseconds) {
      int at = (int) Math.min(count, KEPT_MAX);
      if (at == KEPT_MAX) {
        at = ThreadLocalRandom.current().nextInt(KEPT_MAX);
      } else if (at == kept.length) {
        kept = Arrays.copyOf(kept, kept.length * 2);
      }
      kept[at] = nanoseconds;
      count++;
    }

    synchronized double at(double share) {
      int size = (int) Math.min(count, KEPT_MAX);
      if (size == 0) {
        return 0;
      }
      long[] sorted = Arrays.copyOf(kept, size);
      Arrays.sort(sorted);
      return sorted[Math.min(size - 1, (int) (share * size))] / 1e6;
    }
  }
}
