package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const wait = 15 * time.Second

// stage is what a check gets: a client, addresses, and a topic nobody else uses. Its helpers panic; the runner recovers.
type stage struct {
	client   pulsar.Client
	adminURL string
	topic    string
}

func ok(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(expected, actual any) {
	if !reflect.DeepEqual(expected, actual) {
		panic(fmt.Errorf("expected %v but got %v", expected, actual))
	}
}

func refused(part string, err error) {
	if err == nil || !strings.Contains(err.Error(), part) {
		panic(fmt.Errorf("expected a refusal with %q but got %v", part, err))
	}
}

func (stage *stage) producer(change func(*pulsar.ProducerOptions)) (pulsar.Producer, error) {
	options := pulsar.ProducerOptions{Topic: stage.topic, DisableBatching: true}
	if change != nil {
		change(&options)
	}
	return stage.client.CreateProducer(options)
}

func (stage *stage) mustProducer(change func(*pulsar.ProducerOptions)) pulsar.Producer {
	producer, err := stage.producer(change)
	ok(err)
	return producer
}

func (stage *stage) subscribe(kind pulsar.SubscriptionType, change func(*pulsar.ConsumerOptions)) (pulsar.Consumer, error) {
	options := pulsar.ConsumerOptions{
		Topic: stage.topic, SubscriptionName: "s", Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	if change != nil {
		change(&options)
	}
	return stage.client.Subscribe(options)
}

func (stage *stage) mustSubscribe(kind pulsar.SubscriptionType, change func(*pulsar.ConsumerOptions)) pulsar.Consumer {
	consumer, err := stage.subscribe(kind, change)
	ok(err)
	return consumer
}

func (stage *stage) mustReader(start pulsar.MessageID, inclusive bool) pulsar.Reader {
	reader, err := stage.client.CreateReader(pulsar.ReaderOptions{
		Topic: stage.topic, StartMessageID: start, StartMessageIDInclusive: inclusive,
	})
	ok(err)
	return reader
}

func (stage *stage) admin(method, path, body string) {
	request, err := http.NewRequest(method, stage.adminURL+"/admin/v2/"+path, strings.NewReader(body))
	ok(err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	ok(err)
	defer response.Body.Close()
	content, _ := io.ReadAll(response.Body)
	if response.StatusCode >= 300 {
		panic(fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, content))
	}
}

func soon() context.Context {
	limited, cancel := context.WithTimeout(context.Background(), wait)
	time.AfterFunc(wait, cancel)
	return limited
}

func send(producer pulsar.Producer, payloads ...string) []pulsar.MessageID {
	var ids []pulsar.MessageID
	for _, payload := range payloads {
		id, err := producer.Send(soon(), &pulsar.ProducerMessage{Payload: []byte(payload)})
		ok(err)
		ids = append(ids, id)
	}
	return ids
}

func next(consumer pulsar.Consumer) pulsar.Message {
	message, err := consumer.Receive(soon())
	ok(err)
	return message
}

func texts(consumer pulsar.Consumer, count int) []string {
	var found []string
	for range count {
		message := next(consumer)
		ok(consumer.Ack(message))
		found = append(found, string(message.Payload()))
	}
	return found
}

func read(reader pulsar.Reader) string {
	message, err := reader.Next(soon())
	ok(err)
	return string(message.Payload())
}

func nothing(consumer pulsar.Consumer) {
	limited, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if message, err := consumer.Receive(limited); err == nil {
		panic(fmt.Errorf("unexpected message %v", message.ID()))
	}
}

type reading struct {
	Sensor string `json:"sensor" avro:"sensor"`
	Value  int    `json:"value" avro:"value"`
}

const readingSchema = `{"type":"record","name":"Reading","namespace":"e2e","fields":[` +
	`{"name":"sensor","type":"string"},{"name":"value","type":"int"}]}`

func schemaRoundTrip(stage *stage, schema pulsar.Schema) {
	consumer := stage.mustSubscribe(pulsar.Exclusive, func(o *pulsar.ConsumerOptions) { o.Schema = schema })
	producer := stage.mustProducer(func(o *pulsar.ProducerOptions) { o.Schema = schema })
	_, err := producer.Send(soon(), &pulsar.ProducerMessage{Value: &reading{"kitchen", 21}})
	ok(err)
	var got reading
	ok(next(consumer).GetSchemaValue(&got))
	expect(reading{"kitchen", 21}, got)
}

var checks = map[string]func(*stage){
	// A producer that publishes all the time while its topic is terminated is told so: nothing waits for its time-out.
	"terminatedWhileSending": func(stage *stage) {
		producer := stage.mustProducer(func(o *pulsar.ProducerOptions) { o.SendTimeout = 2 * wait })
		outcomes := make(chan error, 1<<20)
		sent, running, terminated := 0, true, make(chan struct{})
		go func() {
			time.Sleep(200 * time.Millisecond)
			stage.admin("POST", strings.Replace(stage.topic, "://", "/", 1)+"/terminate", "")
			close(terminated)
		}()
		for running {
			producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")},
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { outcomes <- err })
			sent++
			time.Sleep(50 * time.Microsecond)
			select {
			case <-terminated:
				running = false
			default:
			}
		}
		told := 0
		for range sent {
			select {
			case err := <-outcomes:
				if err != nil && strings.Contains(err.Error(), "erminated") {
					told++
				} else if err != nil {
					refused("closed", err)
				}
			case <-time.After(wait):
				panic(errors.New("a message has no answer"))
			}
		}
		if told == 0 {
			panic(errors.New("nobody was told that the topic is terminated"))
		}
	},
	"readerFromEarliest": func(stage *stage) {
		send(stage.mustProducer(nil), "a", "b")
		reader := stage.mustReader(pulsar.EarliestMessageID(), false)
		expect("a", read(reader))
		expect("b", read(reader))
		expect(false, reader.HasNext())
	},
	"readerFromMessageId": func(stage *stage) {
		ids := send(stage.mustProducer(nil), "a", "b", "c")
		expect("c", read(stage.mustReader(ids[1], false)))
		expect("b", read(stage.mustReader(ids[1], true)))
	},
	"readerSeek": func(stage *stage) {
		ids := send(stage.mustProducer(nil), "a", "b", "c")
		reader := stage.mustReader(pulsar.EarliestMessageID(), false)
		read(reader)
		ok(reader.Seek(ids[1]))
		expect("c", read(reader))
	},
	"seekByIdAndTime": func(stage *stage) {
		producer, consumer := stage.mustProducer(nil), stage.mustSubscribe(pulsar.Exclusive, nil)
		ids := send(producer, "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		middle := time.Now()
		time.Sleep(50 * time.Millisecond)
		send(producer, "after")
		texts(consumer, 4)
		ok(consumer.Seek(ids[1]))
		expect([]string{"c", "after"}, texts(consumer, 2))
		ok(consumer.SeekByTime(middle))
		expect([]string{"after"}, texts(consumer, 1))
	},
	"lastMessageId": func(stage *stage) {
		producer, consumer := stage.mustProducer(nil), stage.mustSubscribe(pulsar.Exclusive, nil)
		last := send(producer, "a", "b")[1]
		found, err := consumer.GetLastMessageIDs()
		ok(err)
		expect(last.EntryID(), found[0].EntryID())
	},
	"messageFields": func(stage *stage) {
		consumer := stage.mustSubscribe(pulsar.Exclusive, nil)
		producer := stage.mustProducer(func(o *pulsar.ProducerOptions) { o.Name = "named" })
		sequence := int64(7)
		_, err := producer.Send(soon(), &pulsar.ProducerMessage{
			Payload: []byte("x"), Key: "k", OrderingKey: "order", EventTime: time.UnixMilli(42),
			Properties: map[string]string{"a": "1", "b": "ü"}, SequenceID: &sequence,
		})
		ok(err)
		message := next(consumer)
		expect([]any{"k", "order", int64(42), "named"},
			[]any{message.Key(), message.OrderingKey(), message.EventTime().UnixMilli(), message.ProducerName()})
		expect(map[string]string{"a": "1", "b": "ü"}, message.Properties())
		expect(int64(7), producer.LastSequenceID())
	},
	"negativeAck": func(stage *stage) {
		consumer := stage.mustSubscribe(pulsar.Shared, func(o *pulsar.ConsumerOptions) {
			o.NackRedeliveryDelay = 200 * time.Millisecond
		})
		send(stage.mustProducer(nil), "a")
		consumer.Nack(next(consumer))
		expect(uint32(1), next(consumer).RedeliveryCount())
	},
	"ackWithResponse": func(stage *stage) {
		consumer := stage.mustSubscribe(pulsar.Shared, func(o *pulsar.ConsumerOptions) { o.AckWithResponse = true })
		send(stage.mustProducer(nil), "a", "b")
		ok(consumer.AckID(next(consumer).ID()))
		ok(consumer.AckIDList([]pulsar.MessageID{next(consumer).ID()}))
		consumer.Close()
		nothing(stage.mustSubscribe(pulsar.Shared, nil))
	},
	"cumulativeAck": func(stage *stage) {
		send(stage.mustProducer(nil), "a", "b", "c")
		consumer := stage.mustSubscribe(pulsar.Exclusive, nil)
		next(consumer)
		ok(consumer.AckCumulative(next(consumer)))
		consumer.Close()
		expect([]string{"c"}, texts(stage.mustSubscribe(pulsar.Exclusive, nil), 1))
	},
	"batchIndexAck": func(stage *stage) {
		producer := stage.mustProducer(func(o *pulsar.ProducerOptions) {
			o.DisableBatching, o.BatchingMaxPublishDelay = false, time.Second
		})
		for _, payload := range []string{"a", "b", "c", "d"} {
			producer.SendAsync(soon(), &pulsar.ProducerMessage{Payload: []byte(payload)},
				func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		}
		ok(producer.Flush())
		indexes := func(o *pulsar.ConsumerOptions) { o.EnableBatchIndexAcknowledgment, o.AckWithResponse = true, true }
		consumer := stage.mustSubscribe(pulsar.Shared, indexes)
		for number := range 4 {
			message := next(consumer)
			if number%2 == 0 {
				ok(consumer.Ack(message))
			}
		}
		consumer.Close()
		consumer = stage.mustSubscribe(pulsar.Shared, indexes)
		expect([]string{"b", "d"}, texts(consumer, 2))
		nothing(consumer)
	},
	"deadLetterTopic": func(stage *stage) {
		dead, err := stage.client.Subscribe(pulsar.ConsumerOptions{Topic: stage.topic + "-s-DLQ", SubscriptionName: "d"})
		ok(err)
		consumer := stage.mustSubscribe(pulsar.Shared, func(o *pulsar.ConsumerOptions) {
			o.NackRedeliveryDelay = 100 * time.Millisecond
			o.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: stage.topic + "-s-DLQ"}
		})
		send(stage.mustProducer(nil), "poison")
		for range 2 {
			consumer.Nack(next(consumer))
		}
		expect("poison", string(next(dead).Payload()))
	},
	"retryLetterTopic": func(stage *stage) {
		consumer := stage.mustSubscribe(pulsar.Shared, func(o *pulsar.ConsumerOptions) {
			o.RetryEnable = true
			o.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 3}
		})
		send(stage.mustProducer(nil), "again")
		consumer.ReconsumeLater(next(consumer), 300*time.Millisecond)
		message := next(consumer)
		expect("1", message.Properties()["RECONSUMETIMES"])
	},
	"exclusiveBusy": func(stage *stage) {
		stage.mustSubscribe(pulsar.Exclusive, nil)
		_, err := stage.subscribe(pulsar.Exclusive, nil)
		refused("ConsumerBusy", err)
	},
	"failoverTakeover": func(stage *stage) {
		// In a partition the first name is active; a topic without partitions chooses by a hash of its name.
		stage.admin("PUT", strings.Replace(stage.topic, "://", "/", 1)+"/partitions", "1")
		name := func(name string) func(*pulsar.ConsumerOptions) {
			return func(o *pulsar.ConsumerOptions) { o.Name = name }
		}
		first := stage.mustSubscribe(pulsar.Failover, name("a"))
		second := stage.mustSubscribe(pulsar.Failover, name("b"))
		send(stage.mustProducer(nil), "a", "b")
		expect("a", string(next(first).Payload()))
		nothing(second)
		first.Close()
		expect([]string{"a", "b"}, texts(second, 2))
	},
	"keySharedSticky": func(stage *stage) {
		sticky := func(low, high int) (pulsar.Consumer, error) {
			policy, err := pulsar.NewKeySharedPolicySticky([]int{low, high})
			ok(err)
			return stage.subscribe(pulsar.KeyShared, func(o *pulsar.ConsumerOptions) { o.KeySharedPolicy = policy })
		}
		_, err := sticky(0, 65535)
		ok(err)
		_, err = sticky(100, 200)
		refused("", err)
	},
	"exclusiveProducer": func(stage *stage) {
		exclusive := func(o *pulsar.ProducerOptions) { o.ProducerAccessMode = pulsar.ProducerAccessModeExclusive }
		stage.mustProducer(exclusive)
		_, err := stage.producer(exclusive)
		refused("ProducerFenced", err)
	},
	"waitForExclusive": func(stage *stage) {
		waiting := func(o *pulsar.ProducerOptions) { o.ProducerAccessMode = pulsar.ProducerAccessModeWaitForExclusive }
		first := stage.mustProducer(waiting)
		got := make(chan pulsar.Producer)
		go func() { got <- stage.mustProducer(waiting) }()
		select {
		case <-got:
			panic(errors.New("the second producer did not wait"))
		case <-time.After(300 * time.Millisecond):
		}
		first.Close()
		send(<-got, "x")
	},
	"producerNameTaken": func(stage *stage) {
		named := func(o *pulsar.ProducerOptions) { o.Name = "same" }
		stage.mustProducer(named)
		_, err := stage.producer(named)
		refused("", err)
	},
	"chunkedMessage": func(stage *stage) {
		large := make([]byte, 12<<20)
		_, err := rand.Read(large)
		ok(err)
		consumer := stage.mustSubscribe(pulsar.Exclusive, nil)
		send(stage.mustProducer(func(o *pulsar.ProducerOptions) { o.EnableChunking = true }), string(large))
		expect(true, bytes.Equal(large, next(consumer).Payload()))
	},
	"tooLargeMessage": func(stage *stage) {
		producer := stage.mustProducer(nil)
		_, err := producer.Send(soon(), &pulsar.ProducerMessage{Payload: make([]byte, 6<<20)})
		refused("", err)
		send(producer, "fits")
	},
	"delayedMessage": func(stage *stage) {
		consumer, producer := stage.mustSubscribe(pulsar.Shared, nil), stage.mustProducer(nil)
		started := time.Now()
		_, err := producer.Send(soon(), &pulsar.ProducerMessage{Payload: []byte("late"), DeliverAfter: 2 * time.Second})
		ok(err)
		send(producer, "soon")
		expect([]string{"soon", "late"}, texts(consumer, 2))
		took := time.Since(started)
		expect(true, took > 1900*time.Millisecond && took < 5*time.Second)
	},
	"nonPersistentTopic": func(stage *stage) {
		stage.topic = strings.Replace(stage.topic, "persistent:", "non-persistent:", 1)
		consumer := stage.mustSubscribe(pulsar.Exclusive, nil)
		send(stage.mustProducer(nil), "a")
		expect("a", string(next(consumer).Payload()))
	},
	"patternSubscription": func(stage *stage) {
		base := stage.topic
		producers := []pulsar.Producer{}
		for _, suffix := range []string{"-a", "-b"} {
			stage.topic = base + suffix
			producers = append(producers, stage.mustProducer(nil))
		}
		consumer, err := stage.client.Subscribe(pulsar.ConsumerOptions{
			TopicsPattern: base + "-.*", SubscriptionName: "s", AutoDiscoveryPeriod: time.Second,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
		ok(err)
		stage.topic = base + "-c"
		for index, producer := range append(producers, stage.mustProducer(nil)) {
			send(producer, fmt.Sprint(index))
		}
		found := texts(consumer, 3)
		sort.Strings(found)
		expect([]string{"0", "1", "2"}, found)
	},
	"partitionedTopic": func(stage *stage) {
		stage.admin("PUT", strings.Replace(stage.topic, "://", "/", 1)+"/partitions", "3")
		partitions, err := stage.client.TopicPartitions(stage.topic)
		ok(err)
		expect(3, len(partitions))
		consumer, producer := stage.mustSubscribe(pulsar.Shared, nil), stage.mustProducer(nil)
		found := map[int32]bool{}
		for _, id := range send(producer, "a", "b", "c", "d", "e", "f") {
			found[id.PartitionIdx()] = true
		}
		expect(3, len(found))
		texts(consumer, 6)
	},
	"tableView": func(stage *stage) {
		schema := pulsar.NewStringSchema(nil)
		producer := stage.mustProducer(func(o *pulsar.ProducerOptions) { o.Schema = schema })
		for _, payload := range []string{"one", "two"} {
			_, err := producer.Send(soon(), &pulsar.ProducerMessage{Value: payload, Key: "a"})
			ok(err)
		}
		text := ""
		view, err := stage.client.CreateTableView(pulsar.TableViewOptions{
			Topic: stage.topic, Schema: schema, SchemaValueType: reflect.TypeOf(&text),
		})
		ok(err)
		defer view.Close()
		expect("two", *view.Get("a").(*string))
	},
	"unloadedTopic": func(stage *stage) {
		producer, consumer := stage.mustProducer(nil), stage.mustSubscribe(pulsar.Exclusive, nil)
		send(producer, "before")
		texts(consumer, 1)
		stage.admin("PUT", strings.Replace(stage.topic, "://", "/", 1)+"/unload", "")
		send(producer, "after")
		expect([]string{"after"}, texts(consumer, 1))
	},
	"lookupOverHttp": func(stage *stage) {
		client := openClient(stage.adminURL)
		defer client.Close()
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: stage.topic})
		ok(err)
		send(producer, "a")
	},
	"schemaAvro": func(stage *stage) { schemaRoundTrip(stage, pulsar.NewAvroSchema(readingSchema, nil)) },
	"schemaJson": func(stage *stage) { schemaRoundTrip(stage, pulsar.NewJSONSchema(readingSchema, nil)) },
	"schemaIncompatible": func(stage *stage) {
		schemaRoundTrip(stage, pulsar.NewJSONSchema(readingSchema, nil))
		_, err := stage.producer(func(o *pulsar.ProducerOptions) { o.Schema = pulsar.NewAvroSchema(readingSchema, nil) })
		refused("IncompatibleSchema", err)
	},
}

// perform runs one check and turns a panic of its helpers into a sentence.
func perform(check func(*stage), where *stage) (failure any) {
	defer func() { failure = recover() }()
	check(where)
	return nil
}

// features runs the wanted checks, all when none is named, and returns the number of failures.
func features(serviceURL, adminURL string, wanted []string) int {
	client := openClient(serviceURL)
	defer client.Close()
	names := make([]string, 0, len(checks))
	for name := range checks {
		if len(wanted) == 0 || slices.Contains(wanted, name) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	run, failures := time.Now().UnixMilli(), 0
	for _, name := range names {
		started := time.Now()
		where := &stage{client, adminURL, fmt.Sprintf("persistent://public/default/go-%s-%d", name, run)}
		if failure := perform(checks[name], where); failure != nil {
			failures++
			fmt.Fprintf(os.Stdout, "FAIL %s: %v\n", name, failure)
			continue
		}
		fmt.Fprintf(os.Stdout, "OK %s (%d ms)\n", name, time.Since(started).Milliseconds())
	}
	return failures
}
