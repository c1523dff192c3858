// Command receipts publishes at a steady rate with the stock Go client and tells of every receipt, one line each:
//
//	R topic-index sent received
//	E topic-index sent received error
//
// Times are Unix nanoseconds of the machine's clock, which whoever disturbs the servers meanwhile has, too.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

var (
	serviceURL = flag.String("url", "pulsar://127.0.0.1:6650", "service URL")
	topic      = flag.String("topic", "persistent://public/default/receipts", "prefix of the topics' names")
	topics     = flag.Int("topics", 1, "number of topics, each with a producer")
	rate       = flag.Int("rate", 50, "messages a second and topic")
	size       = flag.Int("size", 100, "payload bytes")
	pause      = flag.Duration("backoff", 0, "pause between attempts to come back; 0: the client's own, which doubles")
)

// steadyBackoff always waits as long.
type steadyBackoff struct{}

func (steadyBackoff) Next() time.Duration       { return *pause }
func (steadyBackoff) IsMaxBackoffReached() bool { return false }
func (steadyBackoff) Reset()                    {}

// teller writes whole lines, one at a time.
type teller struct {
	mutex  sync.Mutex
	output *bufio.Writer
}

func (teller *teller) tell(format string, values ...any) {
	teller.mutex.Lock()
	defer teller.mutex.Unlock()
	fmt.Fprintf(teller.output, format, values...)
	_ = teller.output.Flush()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func publish(producer pulsar.Producer, index int, teller *teller) {
	payload := make([]byte, *size)
	for range time.Tick(time.Second / time.Duration(*rate)) {
		sent := time.Now()
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				received := time.Now()
				if err != nil {
					teller.tell("E %d %d %d %v\n", index, sent.UnixNano(), received.UnixNano(), err)
				} else {
					teller.tell("R %d %d %d\n", index, sent.UnixNano(), received.UnixNano())
				}
			})
	}
}

func main() {
	flag.Parse()
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: *serviceURL, Logger: log.NewLoggerWithLogrus(logger)})
	must(err)
	options := pulsar.ProducerOptions{DisableBatching: true, MaxPendingMessages: 10_000, SendTimeout: time.Minute}
	if *pause > 0 {
		options.BackOffPolicyFunc = func() backoff.Policy { return steadyBackoff{} }
	}
	teller := &teller{output: bufio.NewWriter(os.Stdout)}
	for index := range *topics {
		options.Topic = fmt.Sprintf("%s-%d", *topic, index)
		producer, err := client.CreateProducer(options)
		must(err)
		go publish(producer, index, teller)
	}
	select {} // Until it is killed.
}
