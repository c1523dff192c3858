// Command load drives a Pulsar server with the stock Go client and reports what it saw as JSON.
//
// One process publishes and consumes, so that end-to-end latency needs no clock but its own. It prints `window start` and
// `window end` around the measured time, for whoever watches the server meanwhile, and the result as the last line.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

var (
	serviceURL = flag.String("url", "pulsar://127.0.0.1:6650", "service URL")
	consumeURL = flag.String("consume-url", "", "service URL of consumers, where it is another one")
	topic      = flag.String("topic", "persistent://public/default/load", "topic, or its prefix when there are several")
	topics     = flag.Int("topics", 1, "number of topics, each with a producer and a consumer")
	size       = flag.Int("size", 1024, "payload bytes, at least 8")
	batched    = flag.Bool("batched", false, "let the client batch (1 ms, 1000 messages, 128 KiB)")
	rate       = flag.Int("rate", 0, "messages a second over all topics, 0 for as many as receipts allow")
	pending    = flag.Int("pending", 1000, "messages without a receipt a producer may have")
	warmup     = flag.Duration("warmup", 5*time.Second, "time before the measured window")
	window     = flag.Duration("window", 30*time.Second, "measured time")
	backlog    = flag.Int("backlog", 0, "instead: publish so many messages nobody consumes, then measure consuming them")
	rest       = flag.Duration("rest", 0, "time between the end of publishing a backlog and consuming it")
	behindBy   = flag.Int("behind", 0, "instead: a subscription falls so many messages behind, and catches up beside half the rate")
	drain      = flag.Duration("drain", 5*time.Minute, "at most so long a backlog is consumed")
	named      = flag.Int("subscriptions", 1, "subscriptions of each topic")
	consumers  = flag.Int("consumers", 1, "consumers of each subscription")
	kind       = flag.String("type", "Exclusive", "type of the subscriptions: Exclusive, Shared or Key_Shared")
	keys       = flag.Int("keys", 0, "different keys of messages, one after the other; 0: messages have none")
)

// resolution: neighbouring buckets differ by 2 %, from a microsecond to beyond ten minutes.
const (
	resolution = 1.02
	buckets    = 1024
)

// histogram of durations, safe for concurrent use.
type histogram struct{ counts [buckets]atomic.Int64 }

func (histogram *histogram) add(took time.Duration) {
	bucket := int(math.Log(math.Max(1, float64(took.Microseconds()))) / math.Log(resolution))
	histogram.counts[min(bucket, buckets-1)].Add(1)
}

// percentile in milliseconds; 0 when nothing was recorded.
func (histogram *histogram) percentile(share float64) float64 {
	total := int64(0)
	for index := range histogram.counts {
		total += histogram.counts[index].Load()
	}
	rank, below := int64(math.Ceil(share*float64(total))), int64(0)
	for index := range histogram.counts {
		below += histogram.counts[index].Load()
		if total > 0 && below >= rank {
			return math.Pow(resolution, float64(index)+0.5) / 1000
		}
	}
	return 0
}

func (histogram *histogram) summary() map[string]float64 {
	return map[string]float64{
		"p50_ms": histogram.percentile(0.5), "p99_ms": histogram.percentile(0.99), "p999_ms": histogram.percentile(0.999),
	}
}

// load counts only inside the window. Publishing and consuming have a client, so a connection, each: on a shared one
// permits and acknowledgements would wait behind what is published.
type load struct {
	publishing pulsar.Client
	consuming  pulsar.Client
	measuring  atomic.Bool
	published  atomic.Int64
	failed     atomic.Int64
	consumed   atomic.Int64
	receipts   histogram
	endToEnd   histogram
	opening    time.Duration // Of all producers, one after the other, and of all consumers, `openingAtOnce` at a time.
}

// openingAtOnce is how many consumers are being opened at any time: the users of a topic come side by side.
const openingAtOnce = 32

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func newClient(url string) pulsar.Client {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.NewLoggerWithLogrus(logger)})
	must(err)
	return client
}

func topicName(index int) string {
	if *topics == 1 {
		return *topic
	}
	return fmt.Sprintf("%s-%d", *topic, index)
}

func (load *load) producer(index int) pulsar.Producer {
	producer, err := load.publishing.CreateProducer(pulsar.ProducerOptions{
		Topic: topicName(index), DisableBatching: !*batched, MaxPendingMessages: *pending,
		BatchingMaxPublishDelay: time.Millisecond, BatchingMaxMessages: 1000, BatchingMaxSize: 128 << 10,
	})
	must(err)
	return producer
}

// kinds of subscriptions, as the brokers' REST API calls them.
var kinds = map[string]pulsar.SubscriptionType{
	"Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared, "Key_Shared": pulsar.KeyShared,
}

func (load *load) consumer(index int, subscription int) pulsar.Consumer {
	subscriptionType, known := kinds[*kind]
	if !known {
		must(fmt.Errorf("-type=%s: it must be Exclusive, Shared or Key_Shared", *kind))
	}
	consumer, err := load.consuming.Subscribe(pulsar.ConsumerOptions{
		Topic: topicName(index), SubscriptionName: fmt.Sprintf("load-%d", subscription), Type: subscriptionType,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, ReceiverQueueSize: 1000,
	})
	must(err)
	return consumer
}

// publish sends until the process ends, or `count` messages when count is not 0; each begins with its time of sending.
func (load *load) publish(producer pulsar.Producer, rate float64, count int) {
	filling := make([]byte, *size)
	rand.New(rand.NewSource(1)).Read(filling)
	started := time.Now()
	for sent := 0; count == 0 || sent < count; sent++ {
		if rate > 0 {
			time.Sleep(time.Until(started.Add(time.Duration(float64(sent) / rate * float64(time.Second)))))
		}
		payload := make([]byte, *size)
		copy(payload, filling)
		now := time.Now()
		binary.LittleEndian.PutUint64(payload, uint64(now.UnixNano()))
		key := ""
		if *keys > 0 {
			key = strconv.Itoa(sent % *keys)
		}
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload, Key: key},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				switch {
				case err != nil:
					load.failed.Add(1)
				case load.measuring.Load():
					load.published.Add(1)
					load.receipts.add(time.Since(now))
				}
			})
	}
	_ = producer.Flush()
}

func (load *load) consume(consumer pulsar.Consumer) {
	for message := range consumer.Chan() {
		if load.measuring.Load() {
			load.consumed.Add(1)
			load.endToEnd.add(time.Since(time.Unix(0, int64(binary.LittleEndian.Uint64(message.Payload())))))
		}
		_ = consumer.Ack(message.Message)
	}
}

func (load *load) result(seconds float64) {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	line, err := json.Marshal(map[string]any{
		"published": load.published.Load(), "consumed": load.consumed.Load(), "failed": load.failed.Load(),
		"seconds": seconds, "publish": load.receipts.summary(), "end_to_end": load.endToEnd.summary(),
		"opening_s":    load.opening.Seconds(),
		"client_cpu_s": float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9,
	})
	must(err)
	fmt.Println(string(line))
}

// steady publishes and consumes at once: a warm-up, then the window.
func (load *load) steady() {
	producers := make([]pulsar.Producer, *topics)
	places := make(chan struct{}, openingAtOnce)
	var opening sync.WaitGroup
	started := time.Now()
	for index := range producers {
		producers[index] = load.producer(index) // First: it makes the topic, which not every consumer's broker can.
		for subscription := range *named {
			for range *consumers {
				places <- struct{}{}
				opening.Add(1)
				go func() {
					consumer := load.consumer(index, subscription)
					<-places
					opening.Done()
					load.consume(consumer)
				}()
			}
		}
	}
	opening.Wait()
	load.opening = time.Since(started)
	for _, producer := range producers { // Not before all are open: opening would wait behind the load.
		go load.publish(producer, float64(*rate)/float64(*topics), 0)
	}
	time.Sleep(*warmup)
	load.measuring.Store(true)
	started = time.Now()
	fmt.Println("window start")
	time.Sleep(*window)
	load.measuring.Store(false)
	seconds := time.Since(started).Seconds()
	fmt.Println("window end")
	load.result(seconds)
}

// empty builds a backlog first and measures the time from subscribing until all of it has arrived.
func (load *load) empty() {
	load.consumer(0, 0).Close()
	producer := load.producer(0)
	load.publish(producer, 0, *backlog)
	producer.Close()
	time.Sleep(*rest)
	load.measuring.Store(true)
	started := time.Now()
	fmt.Println("window start")
	consumer := load.consumer(0, 0)
	go load.consume(consumer)
	for load.consumed.Load() < int64(*backlog) && time.Since(started) < *drain {
		time.Sleep(time.Millisecond)
	}
	seconds := time.Since(started).Seconds()
	fmt.Println("window end")
	load.result(seconds)
}

func main() {
	flag.Parse()
	if *consumeURL == "" {
		*consumeURL = *serviceURL
	}
	load := &load{publishing: newClient(*serviceURL), consuming: newClient(*consumeURL)}
	switch {
	case *behindBy > 0:
		load.behind()
	case *backlog > 0:
		load.empty()
	default:
		load.steady()
	}
	os.Exit(0) // Thousands of open sends need no farewell.
}
