//! Seed sentences, written for this project, one list a language.
//!
//! `#` stands for a number that is drawn when the sentence is used.

pub(super) const ENGLISH: &[&str] = &[
    "The harbour master counts the boats every morning before the fog has lifted from the water.",
    "When the new bridge opened, the bakery on the old road lost half of its customers within a week.",
    "Please compare the two proposals and tell me which of them would cost less over # years.",
    "She kept the letters in a tin box, sorted by the colour of the ink rather than by date.",
    "Our team measured # samples last winter, and only a few of them behaved as the theory predicts.",
    "If the pump stops at night, close the upper valve first and then call the number on the door.",
    "Nobody could explain why the clock in the station ran faster on days with heavy rain.",
    "A good summary names the question, the method and the result, and leaves the rest to the reader.",
    "The village school has # pupils, two teachers and a garden in which everybody works on Fridays.",
    "I would like to know whether the warranty still holds after the battery has been replaced.",
    "He read the contract twice, crossed out a single word and signed it without another question.",
    "Most delays on this line come from one signal box that was built more than # years ago.",
    "Explain the difference between weather and climate to a child who likes sailing.",
    "The report was finished on time, but its appendix grew longer than the report itself.",
];

pub(super) const GERMAN: &[&str] = &[
    "Der Hafenmeister zählt jeden Morgen die Boote, noch bevor sich der Nebel gehoben hat.",
    "Seit die neue Brücke offen ist, hat die Bäckerei an der alten Straße die Hälfte ihrer Kunden verloren.",
    "Bitte vergleichen Sie die beiden Angebote und sagen Sie mir, welches über # Jahre günstiger wäre.",
    "Die Briefe lagen in einer Blechdose, nach der Farbe der Tinte geordnet und nicht nach dem Datum.",
    "Im letzten Winter haben wir # Proben gemessen, von denen sich nur wenige wie erwartet verhielten.",
    "Fällt die Pumpe nachts aus, schließen Sie zuerst das obere Ventil und rufen dann die Nummer an der Tür an.",
    "Niemand konnte erklären, warum die Bahnhofsuhr an Regentagen schneller ging.",
    "Eine gute Zusammenfassung nennt Frage, Verfahren und Ergebnis und überlässt den Rest der Leserin.",
    "Die Dorfschule hat # Schüler, zwei Lehrkräfte und einen Garten, in dem freitags alle arbeiten.",
    "Ich wüsste gern, ob die Gewährleistung nach dem Austausch des Akkus noch gilt.",
    "Er las den Vertrag zweimal, strich ein einziges Wort und unterschrieb ohne weitere Frage.",
    "Die meisten Verspätungen auf dieser Strecke gehen auf ein über # Jahre altes Stellwerk zurück.",
];

pub(super) const SPANISH: &[&str] = &[
    "El capitán del puerto cuenta los barcos cada mañana antes de que se levante la niebla.",
    "Desde que abrieron el puente nuevo, la panadería del camino viejo perdió la mitad de sus clientes.",
    "Compare las dos propuestas, por favor, y dígame cuál costaría menos en # años.",
    "Guardaba las cartas en una caja de lata, ordenadas por el color de la tinta y no por la fecha.",
    "El invierno pasado medimos # muestras, y muy pocas se comportaron como predice la teoría.",
    "Si la bomba se detiene de noche, cierre primero la válvula de arriba y llame al número de la puerta.",
    "Nadie supo explicar por qué el reloj de la estación corría más los días de lluvia.",
    "Un buen resumen nombra la pregunta, el método y el resultado, y deja lo demás al lector.",
    "La escuela del pueblo tiene # alumnos, dos maestras y un huerto donde todos trabajan los viernes.",
    "Quisiera saber si la garantía sigue vigente después de cambiar la batería.",
    "Leyó el contrato dos veces, tachó una sola palabra y lo firmó sin preguntar nada más.",
    "Casi todos los retrasos de esta línea vienen de una cabina de señales de hace # años.",
];

pub(super) const RUSSIAN: &[&str] = &[
    "Начальник порта каждое утро считает лодки, пока над водой ещё стоит туман.",
    "Когда открыли новый мост, пекарня на старой дороге за неделю потеряла половину покупателей.",
    "Сравните, пожалуйста, оба предложения и скажите, какое из них обойдётся дешевле за # лет.",
    "Письма она хранила в жестяной коробке и раскладывала их по цвету чернил, а не по датам.",
    "Прошлой зимой мы измерили # образцов, и лишь немногие вели себя так, как предсказывает теория.",
    "Если насос остановится ночью, сначала закройте верхний клапан, а потом позвоните по номеру на двери.",
    "Никто не мог объяснить, почему вокзальные часы в дождливые дни спешат.",
    "Хорошее резюме называет вопрос, метод и результат, а остальное оставляет читателю.",
    "В сельской школе # учеников, два учителя и сад, где по пятницам работают все.",
    "Хотелось бы узнать, действует ли гарантия после замены аккумулятора.",
    "Он дважды прочитал договор, вычеркнул одно слово и подписал его без лишних вопросов.",
    "Большинство задержек на этой линии происходит из-за поста, построенного # лет назад.",
];

pub(super) const CHINESE: &[&str] = &[
    "港口的管理员每天早晨在雾散之前清点停泊的船只。",
    "新桥通车以后，老路上的面包店一周之内就失去了一半的顾客。",
    "请比较这两份方案，并告诉我哪一份在#年内的费用更低。",
    "她把信件放在铁盒里，按照墨水的颜色而不是日期来排列。",
    "去年冬天我们测量了#个样本，其中只有少数符合理论的预测。",
    "如果水泵在夜里停止运转，请先关闭上面的阀门，然后拨打门上的电话号码。",
    "没有人能够解释为什么车站的时钟在雨天会走得更快。",
    "好的摘要会说明问题、方法和结果，其余的内容留给读者自己去看。",
    "村里的学校有#名学生、两位老师，还有一个大家每周五一起劳动的菜园。",
    "我想知道更换电池之后，保修是否仍然有效。",
    "他把合同读了两遍，只划掉一个词，就毫不犹豫地签了字。",
    "这条线路上的大部分延误都来自一座建于#年前的信号楼。",
];

pub(super) const JAPANESE: &[&str] = &[
    "港の管理人は、霧が晴れる前に毎朝かならず船の数を数えています。",
    "新しい橋が開通してから、旧道のパン屋は一週間で客の半分を失いました。",
    "二つの提案を比べて、#年間でどちらの費用が少ないか教えてください。",
    "彼女は手紙を缶の箱にしまい、日付ではなくインクの色で並べていた。",
    "昨年の冬に#個の試料を測定しましたが、理論どおりだったのはわずかでした。",
    "夜中にポンプが止まったら、まず上の弁を閉め、それから扉の番号に電話してください。",
    "雨の日に駅の時計がなぜ速く進むのか、誰にも説明できなかった。",
    "よい要約は問いと方法と結果を示し、残りは読み手にゆだねます。",
    "村の学校には#人の生徒と二人の先生がいて、金曜日には全員で畑に出ます。",
    "バッテリーを交換したあとも保証が有効かどうか知りたいのですが。",
    "彼は契約書を二度読み、一語だけ消して、何も聞かずに署名した。",
    "この路線の遅れのほとんどは、#年前に建てられた信号所が原因です。",
];

pub(super) const ARABIC: &[&str] = &[
    "يعدّ مدير الميناء القوارب كل صباح قبل أن ينقشع الضباب عن الماء.",
    "عندما افتُتح الجسر الجديد خسر المخبز على الطريق القديم نصف زبائنه خلال أسبوع.",
    "قارن بين العرضين من فضلك وأخبرني أيهما أقل كلفة خلال # سنوات.",
    "كانت تحفظ الرسائل في علبة معدنية مرتبة حسب لون الحبر لا حسب التاريخ.",
    "قسنا في الشتاء الماضي # عينة، ولم يتصرف كما تتوقع النظرية إلا القليل منها.",
    "إذا توقفت المضخة ليلاً فأغلق الصمام العلوي أولاً ثم اتصل بالرقم المكتوب على الباب.",
    "لم يستطع أحد أن يشرح لماذا تسرع ساعة المحطة في الأيام الممطرة.",
    "الملخص الجيد يذكر السؤال والطريقة والنتيجة ويترك الباقي للقارئ.",
    "في مدرسة القرية # تلميذاً ومعلمتان وحديقة يعمل فيها الجميع يوم الجمعة.",
    "أود أن أعرف هل يبقى الضمان سارياً بعد استبدال البطارية.",
    "قرأ العقد مرتين وشطب كلمة واحدة ثم وقّعه من دون سؤال آخر.",
    "معظم التأخير على هذا الخط سببه برج إشارات بُني قبل # سنة.",
];

pub(super) const HINDI: &[&str] = &[
    "बंदरगाह का अधिकारी हर सुबह कोहरा छँटने से पहले नावों की गिनती करता है।",
    "नया पुल खुलने के बाद पुरानी सड़क की बेकरी ने एक हफ़्ते में आधे ग्राहक खो दिए।",
    "कृपया दोनों प्रस्तावों की तुलना कीजिए और बताइए कि # वर्षों में कौन सा सस्ता पड़ेगा।",
    "वह चिट्ठियों को टिन के डिब्बे में तारीख़ से नहीं, स्याही के रंग से सजाकर रखती थी।",
    "पिछली सर्दियों में हमने # नमूने नापे, पर कुछ ही सिद्धांत के अनुसार निकले।",
    "अगर रात में पंप रुक जाए तो पहले ऊपर का वाल्व बंद करें, फिर दरवाज़े पर लिखे नंबर पर फ़ोन करें।",
    "कोई नहीं समझा सका कि बारिश के दिनों में स्टेशन की घड़ी तेज़ क्यों चलती है।",
    "अच्छा सारांश प्रश्न, विधि और परिणाम बताता है और बाक़ी पाठक पर छोड़ देता है।",
    "गाँव के स्कूल में # बच्चे, दो शिक्षक और एक बग़ीचा है जहाँ शुक्रवार को सब काम करते हैं।",
    "मैं जानना चाहता हूँ कि बैटरी बदलने के बाद वारंटी बनी रहती है या नहीं।",
    "उसने अनुबंध दो बार पढ़ा, एक शब्द काटा और बिना कुछ पूछे हस्ताक्षर कर दिए।",
    "इस लाइन की अधिकतर देरी # साल पुराने सिग्नल केबिन से होती है।",
];

// In code `@` stands for a name and `#` for a number.

pub(super) const RUST: &[&str] = &[
    "/// Sums the weights of every @ that is still open.\npub fn sum_@(items: &[@Entry]) -> u64 {\n    items.iter().filter(|item| !item.closed).map(|item| item.weight).sum()\n}\n\n",
    "#[derive(Debug, Clone, PartialEq)]\npub struct @Config {\n    pub retries: u32,\n    pub timeout: Duration,\n    pub labels: Vec<String>,\n}\n\n",
    "impl Iterator for @Cursor<'_> {\n    type Item = (usize, u8);\n\n    fn next(&mut self) -> Option<Self::Item> {\n        let byte = *self.bytes.get(self.at)?;\n        self.at += 1;\n        Some((self.at - 1, byte))\n    }\n}\n\n",
    "match self.@.get_mut(&key) {\n    Some(slot) if slot.age < # => slot.hits += 1,\n    Some(slot) => *slot = Slot::fresh(now),\n    None => return Err(Error::Missing { key, limit: # }),\n}\n\n",
    "let @ = std::fs::read_to_string(&path)\n    .map_err(|source| LoadError::Read { path: path.clone(), source })?\n    .lines()\n    .filter(|line| !line.trim_start().starts_with('#'))\n    .count();\n\n",
    "#[test]\nfn @_survives_an_empty_queue() {\n    let mut queue = Queue::with_capacity(#);\n    assert!(queue.pop().is_none());\n    queue.push(#);\n    assert_eq!(queue.pop(), Some(#));\n}\n\n",
];

pub(super) const PYTHON: &[&str] = &[
    "def load_@(path, *, limit=#):\n    \"\"\"Read at most `limit` rows from a CSV file.\"\"\"\n    with open(path, newline=\"\") as handle:\n        rows = list(islice(csv.DictReader(handle), limit))\n    return [row for row in rows if row[\"state\"] != \"deleted\"]\n\n\n",
    "class @Store:\n    def __init__(self, size=#):\n        self._items = OrderedDict()\n        self._size = size\n\n    def put(self, key, value):\n        self._items[key] = value\n        self._items.move_to_end(key)\n        while len(self._items) > self._size:\n            self._items.popitem(last=False)\n\n\n",
    "for index, (name, @) in enumerate(sorted(totals.items(), key=lambda kv: -kv[1])):\n    if index >= #:\n        break\n    print(f\"{index + 1:>3}  {name:<20} {@:10.2f}\")\n\n",
    "async def fetch_@(session, url, attempts=#):\n    for attempt in range(attempts):\n        async with session.get(url) as response:\n            if response.status < 500:\n                return await response.json()\n        await asyncio.sleep(2 ** attempt)\n    raise TimeoutError(f\"gave up on {url}\")\n\n\n",
    "@pytest.mark.parametrize(\"value, expected\", [(0, None), (#, \"low\"), (#, \"high\")])\ndef test_classify_@(value, expected):\n    assert classify(value) == expected\n\n\n",
];

pub(super) const C: &[&str] = &[
    "/* Returns the index of the first free @, or -1 when all are taken. */\nstatic int find_free_@(const struct slot *slots, size_t count)\n{\n\tfor (size_t i = 0; i < count; i++)\n\t\tif (!slots[i].in_use)\n\t\t\treturn (int)i;\n\treturn -1;\n}\n\n",
    "#define @_MAX #\n\nstruct @_ring {\n\tuint8_t data[@_MAX];\n\tunsigned int head;\n\tunsigned int tail;\n};\n\n",
    "if (read(fd, &header, sizeof(header)) != (ssize_t)sizeof(header)) {\n\tperror(\"read @ header\");\n\tclose(fd);\n\treturn EXIT_FAILURE;\n}\n\n",
    "int @_compare(const void *left, const void *right)\n{\n\tconst int a = *(const int *)left;\n\tconst int b = *(const int *)right;\n\treturn (a > b) - (a < b);\n}\n\n",
    "buffer = malloc(# * sizeof(*buffer));\nif (buffer == NULL)\n\tgoto out_@;\nmemset(buffer, 0, # * sizeof(*buffer));\n\n",
];

pub(super) const JSON: &[&str] = &[
    "{\"id\": #, \"name\": \"@\", \"price\": #.95, \"tags\": [\"new\", \"@\"], \"in_stock\": true},\n",
    "{\"event\": \"@_changed\", \"at\": \"2025-03-#T08:15:00Z\", \"old\": #, \"new\": #, \"user\": {\"id\": #, \"role\": \"editor\"}},\n",
    "{\"sensor\": \"@-#\", \"readings\": [#.1, #.7, #.4, null, #.0], \"unit\": \"kPa\", \"ok\": false},\n",
    "{\"order\": {\"number\": \"A-#\", \"lines\": [{\"sku\": \"@\", \"quantity\": #}, {\"sku\": \"@\", \"quantity\": #}], \"paid\": true}},\n",
    "{\"host\": \"@.internal.example\", \"port\": #, \"weights\": {\"cpu\": 0.#, \"memory\": 0.#}, \"labels\": []},\n",
];

/// Names that fill `@`.
pub(super) const NAMES: &[&str] = &[
    "ledger", "packet", "window", "anchor", "branch", "signal", "ticket", "margin", "vector",
    "harbor", "needle", "lantern", "parcel", "cursor", "budget", "replica", "meadow", "orbit",
];

/// English whose every word and mark is one token in each vocabulary that the
/// project embeds. Answers are made of it, so that their length is exact.
pub const ONE_TOKEN: &[&str] = &[
    " The first answer is often the best, but it is good to look at the other side of the question.",
    " We can see that the water runs down the hill and into the river every year.",
    " When you open the door, the light comes on and the room is warm again.",
    " There are three ways to do this, and each of them takes about one hour.",
    " In the end, the number of people in the house was more than anyone had thought.",
    " She said that the work would be done before the end of the week.",
    " A small change in the plan can make a large difference in the result.",
    " If the line is long, it is better to wait until the next train comes.",
    " He took the book from the table and read the last page first.",
    " The city has a new school, a park and a market that is open every day.",
];
