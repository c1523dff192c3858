import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs many commands of Apache's {@code pulsar-admin} in one JVM: {@code AdminDriver ADMIN_URL}.
 *
 * <p>Each line of the standard input is one command, its arguments separated by tabs. Each is answered with a line: the
 * word RESULT, the command's success ({@code true} or {@code false}), its standard output and its standard error, both
 * in base64 ({@code =} for nothing), separated by spaces.
 */
public final class AdminDriver {
    public static void main(String[] arguments) throws Exception {
        Method run = PulsarAdminTool.class.getDeclaredMethod("run", String[].class);
        run.setAccessible(true);
        PrintStream out = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setIn(InputStream.nullInputStream());
        String line;
        while ((line = commands.readLine()) != null) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            ByteArrayOutputStream complained = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
            Properties settings = new Properties();
            settings.setProperty("webServiceUrl", arguments[0]);
            boolean succeeded;
            try {
                succeeded = (boolean) run.invoke(new PulsarAdminTool(settings), (Object) line.split("\t"));
            } catch (java.lang.reflect.InvocationTargetException failure) {
                succeeded = false;
                System.err.println(failure.getCause());
            }
            out.println("RESULT " + succeeded + " " + encode(printed) + " " + encode(complained));
            out.flush();
        }
        System.exit(0);
    }

    private static String encode(ByteArrayOutputStream bytes) {
        String text = Base64.getEncoder().encodeToString(bytes.toByteArray());
        return text.isEmpty() ? "=" : text;
    }
}
