import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Maps, lists, strings and arrays far beyond the budget, in three threads; prints a
 *  digest after every step, so that the first wrong one is known. */
public class Objects {
    record Entry(int number, long random, String text, int[] list) {
        String line() {
            return number + " " + random + " " + text + " " + list.length;
        }
    }

    private long seed;

    Objects(long seed) {
        this.seed = seed;
    }

    private int next() {
        seed = seed * 6364136223846793005L + 1442695040888963407L;
        return (int) (seed >>> 33);
    }

    private static String digest(String name, Iterable<String> parts) throws Exception {
        MessageDigest hash = MessageDigest.getInstance("SHA-256");
        for (String part : parts) {
            hash.update(part.getBytes());
        }
        return name + " " + HexFormat.of().formatHex(hash.digest());
    }

    List<String> steps() throws Exception {
        List<String> lines = new ArrayList<>();
        Map<String, Entry> table = new TreeMap<>();
        for (int i = 0; i < 70_000; i++) {
            int random = next();
            table.put("key-" + i + "-" + next(), new Entry(i, random, "text-" + next(), new int[i % 90]));
        }
        lines.add(digest("table", () -> table.values().stream().map(Entry::line).iterator()));
        List<Entry> ordered = new ArrayList<>(table.values());
        ordered.sort(Comparator.comparingLong(Entry::random).thenComparing(Entry::number));
        lines.add(digest("ordered", () -> ordered.stream().map(Entry::line).iterator()));
        Map<Integer, byte[]> blocks = new HashMap<>();
        for (int i = 0; i < 4_000; i++) {
            byte[] block = new byte[next() % 6_000];
            for (int j = 0; j < block.length; j += 64) {
                block[j] = (byte) next();
            }
            blocks.put(i, block);
            if (i % 3 == 0) {
                blocks.remove(i / 2);
            }
        }
        MessageDigest hash = MessageDigest.getInstance("SHA-256");
        blocks.keySet().stream().sorted().forEach(i -> hash.update(blocks.get(i)));
        lines.add("blocks " + HexFormat.of().formatHex(hash.digest()));
        System.gc();
        lines.add(digest("still", () -> ordered.stream().map(Entry::line).iterator()));
        return lines;
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        List<List<String>> results = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            int number = i;
            results.add(new ArrayList<>());
            threads.add(new Thread(() -> {
                try {
                    results.get(number).addAll(new Objects(number + 5).steps());
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        results.forEach(lines -> lines.forEach(System.out::println));
    }
}
