import io.netty.buffer.Unpooled;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.offload.filesystem.impl.FileSystemManagedLedgerOffloader;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.BlobStoreManagedLedgerOffloader;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.OffsetsCache;
import org.apache.bookkeeper.mledger.offload.jcloud.provider.TieredStorageConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/**
 * Apache's own offloaders, one operation a run: `S3|filesystem`, the endpoint or URI, `write|read|delete`, ledger id,
 * uid, managed ledger, and for `write` sizes of entries. Prints what was stored beside it and a digest of all entries.
 */
public class OffloadDriver {
    static final String BUCKET = "bucket";

    public static void main(String[] words) {
        try {
            run(words);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    static void run(String[] words) throws Exception {
        OrderedScheduler threads = OrderedScheduler.newSchedulerBuilder().numThreads(1).name("offload").build();
        LedgerOffloader offloader = words[0].equals("S3") ? blobs(words[1], threads) : files(words[1], threads);
        long ledgerId = Long.parseLong(words[3]);
        UUID uid = UUID.fromString(words[4]);
        Map<String, String> stored = new HashMap<>(offloader.getOffloadDriverMetadata());
        System.out.println("stored " + new TreeMap<>(stored));
        stored.put("ManagedLedgerName", words[5]);
        if (words[2].equals("write")) {
            MadeLedger ledger = new MadeLedger(ledgerId, words[6]);
            offloader.offload(ledger, uid, Map.of("ManagedLedgerName", words[5])).get();
            System.out.println("digest " + digest(ledger));
        } else if (words[2].equals("read")) {
            System.out.println("digest " + digest(offloader.readOffloaded(ledgerId, uid, stored).get()));
        } else {
            offloader.deleteOffloaded(ledgerId, uid, stored).get();
        }
    }

    static LedgerOffloader blobs(String endpoint, OrderedScheduler threads) throws Exception {
        Map<String, String> settings = new HashMap<>();
        settings.put("managedLedgerOffloadDriver", "S3");
        settings.put("managedLedgerOffloadBucket", BUCKET);
        settings.put("managedLedgerOffloadServiceEndpoint", endpoint);
        settings.put("managedLedgerOffloadRegion", "us-east-1");
        settings.put("managedLedgerOffloadMaxBlockSizeInBytes", String.valueOf(5 << 20));
        return BlobStoreManagedLedgerOffloader.create(TieredStorageConfiguration.create(settings), Map.of(), threads,
                threads, LedgerOffloaderStats.create(false, false, null, 0), new OffsetsCache());
    }

    static LedgerOffloader files(String uri, OrderedScheduler threads) throws Exception {
        OffloadPoliciesImpl policies = new OffloadPoliciesImpl();
        policies.setManagedLedgerOffloadDriver("filesystem");
        policies.setFileSystemURI(uri);
        policies.setManagedLedgerOffloadMaxThreads(1);
        policies.setManagedLedgerOffloadPrefetchRounds(1);
        return FileSystemManagedLedgerOffloader.create(policies, threads,
                LedgerOffloaderStats.create(false, false, null, 0));
    }

    static String digest(ReadHandle ledger) throws Exception {
        MessageDigest all = MessageDigest.getInstance("SHA-256");
        long last = ledger.getLastAddConfirmed();
        for (long entry = 0; entry <= last; entry += 100) {
            try (LedgerEntries entries = ledger.readAsync(entry, Math.min(last, entry + 99)).get()) {
                for (LedgerEntry one : entries) {
                    all.update(one.getEntryBytes());
                }
            }
        }
        return (last + 1) + " " + ledger.getLength() + " " + HexFormat.of().formatHex(all.digest());
    }

    /** A closed ledger whose payloads follow the formula of lib/tests/recorded_offloads.py. */
    static class MadeLedger implements ReadHandle {
        private final long id;
        private final int[] sizes;
        private final LedgerMetadata metadata;

        MadeLedger(long id, String sizes) {
            this.id = id;
            this.sizes = List.of(sizes.split(",")).stream().mapToInt(Integer::parseInt).toArray();
            long length = 0;
            for (int size : this.sizes) {
                length += size;
            }
            this.metadata = LedgerMetadataBuilder.create().withId(id).withEnsembleSize(2).withWriteQuorumSize(2)
                    .withAckQuorumSize(1).withDigestType(DigestType.CRC32C).withPassword("secret".getBytes())
                    .withCreationTime(1_700_000_000_123L).storingCreationTime(true)
                    .withCustomMetadata(Map.of("application", "pulsar".getBytes()))
                    .newEnsembleEntry(0L, List.of(BookieId.parse("bookie-1:3181"), BookieId.parse("bookie-2:3181")))
                    .withClosedState().withLastEntryId(this.sizes.length - 1).withLength(length).build();
        }

        static byte[] payload(long entry, int size) {
            byte[] made = new byte[size];
            for (int place = 0; place < size; place++) {
                made[place] = (byte) (entry * 31 + place * 7);
            }
            return made;
        }

        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> entries = new ArrayList<>();
            for (long entry = first; entry <= last; entry++) {
                byte[] made = payload(entry, sizes[(int) entry]);
                entries.add(LedgerEntryImpl.create(id, entry, made.length, Unpooled.wrappedBuffer(made)));
            }
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(entries));
        }

        public long getId() {
            return id;
        }

        public LedgerMetadata getLedgerMetadata() {
            return metadata;
        }

        public boolean isClosed() {
            return true;
        }

        public long getLength() {
            return metadata.getLength();
        }

        public long getLastAddConfirmed() {
            return sizes.length - 1;
        }

        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }

        public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
            return readAsync(first, last);
        }

        public CompletableFuture<Long> readLastAddConfirmedAsync() {
            return CompletableFuture.completedFuture(getLastAddConfirmed());
        }

        public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
            return readLastAddConfirmedAsync();
        }

        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(
                long entry, long milliseconds, boolean parallel) {
            throw new UnsupportedOperationException();
        }
    }
}
