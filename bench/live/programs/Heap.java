import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A heap of records that are looked up, replaced and sorted: what a collector walks through again
 *  and again. Usage: Heap COUNT */
public class Heap {
    record Entry(int id, long random, String text, byte[] content) {}

    private static long state = 12345;

    private static int draw(int below) {
        state = state * 6364136223846793005L + 1442695040888963407L;
        return (int) ((state >>> 33) % below);
    }

    private static Entry make(int id) {
        return new Entry(id, draw(1 << 30), "text-" + draw(1 << 30), new byte[40 + draw(200)]);
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        Map<Integer, Entry> table = new HashMap<>();
        for (int i = 0; i < count; i++) {
            table.put(i, make(i));
        }
        long sum = 0;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 2 * count; i++) {
                int key = draw(i % 10 == 0 ? count : count / 10);
                sum += table.get(key).random();
                if (i % 8 == 0) {
                    table.put(key, make(key));
                }
            }
            List<Entry> ordered = new ArrayList<>(table.values());
            ordered.sort(Comparator.comparingLong(Entry::random).thenComparing(Entry::id));
            long hash = 0;
            for (Entry entry : ordered) {
                hash = hash * 31 + entry.text().hashCode() + entry.content().length;
            }
            System.out.println(sum + " " + hash);
        }
    }
}
