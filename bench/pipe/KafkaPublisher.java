import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** As bench/pipe/publisher.py, for Kafka: SERVERS TOPIC RATE SECONDS BYTES. */
public class KafkaPublisher {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("acks", "all");
        double rate = Double.parseDouble(args[2]), seconds = Double.parseDouble(args[3]);
        int size = Integer.parseInt(args[4]), n = 0;
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            producer.partitionsFor(args[1]);
            long began = System.nanoTime();
            for (double passed = 0; passed < seconds; passed = (System.nanoTime() - began) / 1e9) {
                for (; n < (int) (passed * rate); n++) {
                    ByteBuffer payload = ByteBuffer.allocate(size);
                    payload.putLong(ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
                    producer.send(new ProducerRecord<>(args[1], n % 2, null, payload.array()));
                }
                Thread.sleep(5);
            }
        }
        System.out.println(n);
    }
}
