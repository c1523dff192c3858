// Command client runs the stock Go client under a workload: `client produce|consume OPTIONS.json`.
//
// It writes what it was told and what it got as JSON lines; the shapes are in e2e/history.py.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

// A death of the server must be ridden out by reconnecting, never by an expired send.
const sendTimeout = 300 * time.Second

// Acknowledgements wait for their receipt, so they are sent for several messages at once.
const acknowledgeAtOnce = 100

// Options is what the runner asks for.
type Options struct {
	ServiceURL       string  `json:"service_url"`
	Topic            string  `json:"topic"`
	Subscription     string  `json:"subscription"`
	SubscriptionType string  `json:"subscription_type"`
	Batched          bool    `json:"batched"`
	Compression      string  `json:"compression"`
	Keyed            bool    `json:"keyed"`
	Count            int     `json:"count"`
	Producers        int     `json:"producers"`
	Consumers        int     `json:"consumers"`
	Rate             int     `json:"rate"`
	Corpus           string  `json:"corpus"`
	History          string  `json:"history"`
	StopFile         string  `json:"stop_file"`
	IdleTimeoutS     float64 `json:"idle_timeout_s"`
	LingerMs         int     `json:"linger_ms"`
}

// History appends whole lines, at most a tenth of a second late.
type History struct {
	lock    sync.Mutex
	file    *os.File
	buffer  *bufio.Writer
	flushed time.Time
}

func newHistory(path string) *History {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(err)
	return &History{file: file, buffer: bufio.NewWriterSize(file, 1<<16)}
}

func (history *History) write(event string, fields map[string]any) {
	now := time.Now()
	fields["event"] = event
	fields["time_ms"] = now.UnixMilli()
	line, err := json.Marshal(fields)
	must(err)
	history.lock.Lock()
	defer history.lock.Unlock()
	_, err = history.buffer.Write(append(line, '\n'))
	must(err)
	if event == "note" || now.Sub(history.flushed) > 100*time.Millisecond {
		must(history.buffer.Flush())
		history.flushed = now
	}
}

func (history *History) close() {
	history.lock.Lock()
	defer history.lock.Unlock()
	must(history.buffer.Flush())
	must(history.file.Close())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func quietLogger() log.Logger {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	return log.NewLoggerWithLogrus(logger)
}

// steady tries again ten times a second, so that a restart costs no more than the server's own start.
type steady struct{}

func (steady) Next() time.Duration       { return 100 * time.Millisecond }
func (steady) IsMaxBackoffReached() bool { return false }
func (steady) Reset()                    {}

func newSteady() backoff.Policy { return steady{} }

func openClient(serviceURL string) pulsar.Client {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: serviceURL, OperationTimeout: 120 * time.Second, Logger: quietLogger(),
	})
	must(err)
	return client
}

func idText(id pulsar.MessageID) string {
	return fmt.Sprintf("%d:%d:%d:%d", id.LedgerID(), id.EntryID(), id.PartitionIdx(), id.BatchIdx())
}

func keyOf(line string) string {
	word := strings.Fields(line)[0]
	return word[:min(len(word), 24)]
}

var compressions = map[string]pulsar.CompressionType{
	"NONE": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
}

var subscriptionTypes = map[string]pulsar.SubscriptionType{
	"Exclusive": pulsar.Exclusive, "Failover": pulsar.Failover, "Shared": pulsar.Shared, "Key_Shared": pulsar.KeyShared,
}

func openProducer(client pulsar.Client, options *Options, name string) pulsar.Producer {
	settings := pulsar.ProducerOptions{
		Topic: options.Topic, Name: name, SendTimeout: sendTimeout, DisableBatching: !options.Batched,
		CompressionType: compressions[options.Compression], BackOffPolicyFunc: newSteady,
		BatchingMaxPublishDelay: 5 * time.Millisecond,
	}
	if options.Batched && options.SubscriptionType == "Key_Shared" {
		settings.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	producer, err := client.CreateProducer(settings)
	must(err)
	return producer
}

// produce: producer i sends the numbers i, i + n, i + 2 n, …
func produce(options *Options) {
	history := newHistory(options.History)
	client := openClient(options.ServiceURL)
	content, err := os.ReadFile(options.Corpus)
	must(err)
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	producers := make([]pulsar.Producer, options.Producers)
	for index := range producers {
		producers[index] = openProducer(client, options, fmt.Sprintf("producer-%d", index))
	}
	history.write("note", map[string]any{"text": "ready"})
	started := time.Now()
	sent := 0
	for ; sent < options.Count; sent++ {
		if sent%64 == 0 {
			if _, err := os.Stat(options.StopFile); err == nil {
				break
			}
		}
		name, number := fmt.Sprintf("producer-%d", sent%len(producers)), sent
		line := lines[sent%len(lines)]
		message := &pulsar.ProducerMessage{
			Payload:    []byte(line),
			Properties: map[string]string{"number": strconv.Itoa(number), "producer": name},
		}
		if options.Keyed {
			message.Key = keyOf(line)
		}
		told := func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				history.write("failed", map[string]any{"producer": name, "number": number, "error": err.Error()})
				return
			}
			history.write("acked", map[string]any{"producer": name, "number": number, "id": idText(id)})
		}
		producers[sent%len(producers)].SendAsync(context.Background(), message, told)
		if options.Rate > 0 {
			time.Sleep(time.Until(started.Add(time.Duration(sent) * time.Second / time.Duration(options.Rate))))
		}
	}
	for _, producer := range producers {
		must(producer.Flush())
		producer.Close()
	}
	history.write("note", map[string]any{"text": fmt.Sprintf("sent %d", sent)})
	client.Close()
	history.close()
}

// progress knows which numbers have arrived over all consumers, and when the last one did.
type progress struct {
	lock     sync.Mutex
	options  *Options
	seen     map[int]bool
	count    int
	last     time.Time
	timedOut atomic.Bool
}

// over: everything is here and nothing has come for a while, or nothing has come for far too long.
func (progress *progress) over() bool {
	progress.lock.Lock()
	defer progress.lock.Unlock()
	quiet := time.Since(progress.last)
	if quiet.Seconds() > progress.options.IdleTimeoutS {
		progress.timedOut.Store(true)
		return true
	}
	if quiet < time.Duration(progress.options.LingerMs)*time.Millisecond {
		return false
	}
	if text, err := os.ReadFile(progress.options.StopFile); err == nil {
		if count, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			progress.count = count
		}
	}
	return len(progress.seen) >= progress.count
}

func (progress *progress) arrived(history *History, consumer int, message pulsar.Message) {
	number, err := strconv.Atoi(message.Properties()["number"])
	must(err)
	sum := sha256.Sum256(message.Payload())
	progress.lock.Lock()
	defer progress.lock.Unlock()
	progress.seen[number] = true
	progress.last = time.Now()
	history.write("received", map[string]any{
		"consumer": consumer, "producer": message.Properties()["producer"], "number": number,
		"id": idText(message.ID()), "key": message.Key(), "digest": hex.EncodeToString(sum[:])[:16],
		"redelivery": message.RedeliveryCount(),
	})
}

func consume(options *Options) {
	history := newHistory(options.History)
	client := openClient(options.ServiceURL)
	state := &progress{options: options, seen: map[int]bool{}, count: options.Count, last: time.Now()}
	consumers := make([]pulsar.Consumer, options.Consumers)
	for index := range consumers {
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{
			Topic: options.Topic, SubscriptionName: options.Subscription, Name: fmt.Sprintf("consumer-%d", index),
			Type: subscriptionTypes[options.SubscriptionType], AckWithResponse: true, BackOffPolicyFunc: newSteady,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
		must(err)
		consumers[index] = consumer
	}
	history.write("note", map[string]any{"text": "ready"})
	var running sync.WaitGroup
	for index, consumer := range consumers {
		running.Add(1)
		go func() {
			defer running.Done()
			receiveAll(consumer, index, history, state)
		}()
	}
	running.Wait()
	text := "done"
	if state.timedOut.Load() {
		text = "idle for too long"
	}
	history.write("note", map[string]any{"text": text})
	client.Close()
	history.close()
}

func receiveAll(consumer pulsar.Consumer, index int, history *History, state *progress) {
	for !state.over() {
		var ids []pulsar.MessageID
		deadline := time.After(50 * time.Millisecond)
	collect:
		for len(ids) < acknowledgeAtOnce {
			select {
			case message := <-consumer.Chan():
				state.arrived(history, index, message)
				ids = append(ids, message.ID())
			case <-deadline:
				break collect
			}
		}
		acknowledge(consumer, ids, history)
	}
}

// acknowledge notes a receipt for each id whose acknowledgement the broker confirmed; a failed one is redelivered.
func acknowledge(consumer pulsar.Consumer, ids []pulsar.MessageID, history *History) {
	if len(ids) == 0 {
		return
	}
	if err := consumer.AckIDList(ids); err != nil {
		fmt.Fprintln(os.Stderr, "acknowledge:", err)
		return
	}
	for _, id := range ids {
		history.write("receipt", map[string]any{"id": idText(id)})
	}
}

func main() {
	if len(os.Args) > 3 && os.Args[1] == "features" {
		os.Exit(features(os.Args[2], os.Args[3], os.Args[4:]))
	}
	if len(os.Args) > 3 && os.Args[1] == "transactions" {
		transactions(os.Args[2], os.Args[3])
		return
	}
	content, err := os.ReadFile(os.Args[2])
	must(err)
	var options Options
	must(json.Unmarshal(content, &options))
	map[string]func(*Options){"produce": produce, "consume": consume}[os.Args[1]](&options)
}
